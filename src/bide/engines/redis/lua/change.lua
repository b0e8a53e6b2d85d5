-- change: do one thing to each of some messages.
--   verb        what to do, see below
--   at, after   when: a time, or milliseconds from now; nil, nil: now
--   if_due, if_version  what the caller saw, see is_still, or nil
--   reason, actor  who gives the command, or nil; origin: see `read_origin`
-- ARGV from 3 on, two for each: id, and token of the lease, or version that the caller saw, or (for `end_lease`) the
-- holder whose lease alone is meant, or empty
-- Verbs:
--   cancel      delete messages that no worker holds, if they are still what the caller saw; others repeat no more
--   stop        the same, and ask the workers of others to stop
--   reschedule  let them be due at another time, likewise
--   purge       delete dead letters
--   move        the same: they are in another store now
--   revive      let dead letters be delivered again, with all their attempts
--   retry       give messages back, to be delivered again; without attempts left they die, but those that repeat
--   give_back   give messages back as if they had not been claimed: a `RetryCommand` with `release`; a reason is
--               remembered
--   bury        let them die, or use up the attempts of those that repeat; without a token, let those die that no
--               worker holds, which counts no attempt
--   end_lease   end the lease of any holder, or of the one given, the command `Release`: a failed attempt, ready again
--               at once
--   repair      make a dead letter of what a claim has leased and its client cannot read
-- A message that would wait in a closed group then is cancelled instead; if no worker has held it, its outcome is
-- that the group is closed, and until when.
-- If the worker was asked to stop, `retry`, `give_back`, `bury` and `end_lease` delete the message: it is cancelled.
-- Reply: [now, change, [outcome of each], lease_ends]; the state of a message whose worker this asks to stop is
--   `stopping`, that of a leased one that repeats no more `ending`, and that of one that no worker holds and whose
--   record cannot be read `unreadable`; lease_ends: of a limited queue, for each whether its lease was ended, and when
--   a claim then gets a ready message, or null if that is not before a lease ends
-- Of the call at hand, for `do_verb` and what it calls; moment: what `at` or `after` says.
local verb, moment, if_due, if_version, reason
local stopping  -- ids of those whose workers this call asks to stop; nil: none yet

-- Sets the due time of a message; the time from there until it expires stays the same.
local function plan(r, due)
  if r.expires and r.planned then r.expires = r.expires + r.due - r.planned end
  r.planned, r.asked, r.due = nil, nil, due
end

-- Removes what was to take the place of a leased message when its lease ends: its successor, or its next run. The
-- record changes first: half of this leaves a lease that only takes the longer way to an ack.
local function end_series(r)
  if r.run then
    r.run = nil
    save(r)
  end
  r.successor = nil
  write_lease(r)
end

-- Asks the worker of a message to stop; of several who ask, the first one is remembered. Nothing follows the message.
local function stop(r)
  r.stopping, r.tells = r.stopping or actor or '', 'stopping'
  end_series(r)
  stopping = stopping or {}
  stopping[#stopping + 1] = r.id
end

-- Tells all lanes of the messages whose workers are to stop: those that work on them extend their leases, and
-- are answered that.
local function tell_stopping()
  if stopping then call('PUBLISH', 'bide:wake:all', names() .. ' stop ' .. concat(stopping, '\n')) end
end

-- Returns whether a message is as the verb needs it: leased with this token, or by any holder or this one, or by none
-- and as the caller saw it.
local function may_do(r, token)
  if verb == 'retry' or verb == 'give_back' or verb == 'repair' or verb == 'bury' and token ~= '' then
    return r.token == token
  end
  if verb == 'end_lease' then return r.token ~= nil and (token == '' or r.holder == token) end
  local state = (verb == 'purge' or verb == 'move' or verb == 'revive') and 'dead' or nil
  local version = token ~= '' and token or if_version
  return not r.token and r.state == state and is_still(r, if_due, version)
end

-- Lets a message be delivered again: at once, or at the time that the call asks for.
local function put_back(r)
  if verb == 'give_back' and reason ~= '' then add_failure(r, reason, now) end
  local is_used_up = verb == 'retry' and r.attempt >= r.attempts  -- it repeats, else it is dead
  if verb == 'end_lease' or verb == 'bury' or verb == 'give_back' and moment == now or is_used_up then
    return to_ready(r)
  end
  if verb == 'revive' then  -- it keeps the due time that was asked for, and so its version
    local asked = r.asked or r.planned or r.due
    plan(r, moment)
    r.attempt, r.asked = 0, asked
    if not closing.shut_until(r) then count('revived') end
  elseif verb == 'reschedule' then
    plan(r, moment)
  else  -- a retry, or given back for later
    if r.expires then r.expires = r.expires - (moment - r.due) end  -- when it expires stays
    r.planned, r.due = r.planned or r.due, moment
  end
  to_delayed(r)
end

-- Does to a message what the call asks for, if it may; returns whether it did. `token`: of the lease, or the version
-- that the caller saw, or the holder, or empty.
local function do_verb(r, token)
  -- `locate` has ended its lease, which has deleted it. If that was because its worker was asked to stop, a cancel has
  -- what it wants; but with a version or a token the caller means a message that is there.
  if r.deleted then
    r.shut, r.holder = nil, nil
    return (verb == 'cancel' or verb == 'stop') and r.stopping ~= nil and not if_version and token == ''
      and is_still(r, if_due)
  end
  if verb == 'stop' and r.token then
    if is_still(r, if_due, token ~= '' and token or if_version) then stop(r) end
    return false
  end
  -- The message is leased and stays so; what was to take its place goes.
  if verb == 'cancel' and r.token and (r.successor or r.run) and not (if_due or if_version) and token == '' then
    if r.successor then r.follows = (parse(r.id, r.successor) or r).due else r.tells = 'ending' end
    end_series(r)
    return false
  end
  if not may_do(r, token) then return false end

  if r.token then closing.weigh_successor(r) end
  local is_failure = verb == 'retry' or verb == 'end_lease' or verb == 'bury' and token ~= ''
  if verb == 'repair' then
    repair(r, call('HGET', RECORDS, r.id))
  -- That its worker was asked to stop, or that a successor waits, counts more than how the lease ends.
  elseif r.stopping then
    stopped(r)
  elseif r.successor then
    if verb ~= 'give_back' and failed(r, reason, now, true, verb == 'bury') then count('retried') end
    follow(r)
  elseif verb == 'cancel' or verb == 'stop' or verb == 'purge' or verb == 'move' then
    local how = verb == 'purge' and 'purged' or verb == 'move' and 'moved' or 'cancelled'
    remember_end(r, how, actor)
    delete(r, how)
  elseif verb == 'bury' and not is_failure then
    add_failure(r, reason, now)
    set_aside(r, 'dead')  -- it has not failed, nor ended: a move takes it to another store
  elseif not is_failure then
    put_back(r)
  elseif failed(r, reason, now, true, verb == 'bury') then  -- an attempt is left, or it repeats
    if not closing.shut_until(r) then count('retried') end
    put_back(r)
  end
  return true
end

-- Calls `act(r, token, third and fourth argument or empty)` for each message that is named, by `width` arguments each;
-- `act` returns whether it did what was asked for. Returns the reply.
local function change_each(width, act, origin)
  local outcomes, lease_ends = {}, {}
  local earliest  -- the first time at which one of them can be claimed
  local changed   -- numbers of those that were changed, as keys, if they are from an outbox
  stopping = nil
  advance()
  read_origin(origin)
  for i = 3, #ARGV, width do
    local number, ended = #outcomes + 1, false
    if rows and is_forwarded(number) then
      outcomes[number] = {false, 'forwarded'}
    else
      local r, unreadable = locate(ARGV[i])
      if r and r.deleted and act ~= do_verb then r = nil end
      local held = r and r.token
      local done = r ~= nil and act(r, ARGV[i + 1], width > 2 and ARGV[i + 2] or '', width > 3 and ARGV[i + 3] or '')
      if r and r.deleted and not done then r = nil end
      local refused = done and r.shut and r.deleted and not held  -- it would wait in a closed group
      done = done and not refused
      if done and not (r.deleted or r.state or r.token) then earliest = min(earliest or r.due, r.due) end
      if done and rows then
        changed = changed or {}
        changed[number] = true
      end
      outcomes[number] = unreadable and {false, 'unreadable'} or refused and {false, 'closed', null, r.shut}
        or outcome(r, done)
      ended = held ~= nil and not r.token
    end
    if limited then lease_ends[number] = {ended, opens_next()} end
  end
  remember_rows(changed)
  tell_stopping()
  wake(earliest)
  return finish(outcomes, lease_ends)
end

define('change', {'allow-oom'}, {'cancelled'}, function(...)
  local at, after, origin
  verb, at, after, if_due, if_version, reason, actor, origin = ...
  moment = at or now + (after or 0)
  return change_each(2, do_verb, origin)
end)

-- postpone: let messages that no worker holds be due at other times; they keep the time for which they were planned,
-- and when they expire.
--   priority  of all of them from now on; nil: it stays
-- ARGV from 3 on, three for each: id, when it is due from now on, and when it must be due now, or empty
-- Reply: as change
do
local new_priority  -- of the call at hand

local function postpone(r, due, due_now)
  if r.token or r.state or not is_still(r, tonumber(due_now)) then return false end
  due = tonumber(due)
  if r.expires then r.expires = r.expires - (due - r.due) end
  r.planned, r.due, r.priority = r.planned or r.due, due, new_priority or r.priority
  if r.planned == due then r.planned = nil end
  to_delayed(r)
  return true
end

define('postpone', {'allow-oom'}, {'cancelled'}, function(priority)
  new_priority = priority
  return change_each(3, postpone)
end)
end

-- extend: let leases end at another time, and note how far the workers have come.
--   length  of the leases from now on, in milliseconds; nil: they end as before
--   width   2, or 3 with reports
-- ARGV from 3 on, so many for each: id, token, report as an object in JSON or empty
-- Reply: as change; the state of a message whose worker was asked to stop is `stopping`
local length  -- of the call at hand

-- Extends the lease of a message; returns whether the token is that of its lease.
local function extend(r, token, report)
  if r.token ~= token then return false end
  r.tells = r.stopping and 'stopping'
  if length then
    if now + length < r.until_ then remember_return(r) end
    r.until_, r.extended = now + length, r.extended + 1
  end
  if report ~= '' then r.progress = concat({sub(report, 1, -2), ',"moment":', int(now), '}'}) end
  write_lease(r)
  if length then call('ZADD', LEASED, int(r.until_), r.member) end
  return true
end

define('extend', {'allow-oom'}, {}, function(new_length, width)
  length = new_length
  return change_each(width, extend)
end)

do  -- the whole text has room for only so many local names
-- Returns whether another run follows that of a leased message, of which `closing` has weighed the successor.
local function repeats(r) return r.run and not (r.successor or closing.shut_until(r)) end

-- Lets a message wait for its next run, as if it had just been put.
local function next_run(r, due, run)
  plan(r, due)
  r.attempt, r.failures, r.run = 0, {}, run
  to_delayed(r)
end

-- Acks a run; the next one is due at `due`.
local function acked_run(r, due, run, result)
  r.attempt = r.attempt + 1
  remember_end(r, 'acked', r.holder, result ~= '' and result or nil)
  count('acked')
  count('put')
  next_run(r, due, run)
end

-- Deletes a message that was acked, or keeps it for a while; its successor takes its place.
local function acked(r, result)
  r.attempt = r.attempt + 1
  remember_end(r, 'acked', r.holder, result ~= '' and result or nil)
  if r.successor then
    count('acked')
    count('put')
    follow(r)
  elseif numbers.keep > 0 then
    set_aside(r, 'acked', 'acked')
  else
    delete(r, 'acked')
    r.due = nil
  end
end

do
-- ack: messages are done and leave the queue, or are kept for a while if the queue keeps. Those that repeat wait for
-- who claims them next.
--   width  2, or 3 with results
-- ARGV from 3 on, so many for each, no id twice: id, token, result in JSON or empty
-- Reply: as change; only [now, change] if all have left
local RUN_ENDED = 'ended '  -- as in bide.model.message

-- Acks a message; returns whether the token is that of its lease.
local function ack(r, token, result)
  if r.token ~= token then return false end
  closing.weigh_successor(r)
  if repeats(r) then
    acked_run(r, now, sub(r.run, 1, #RUN_ENDED) == RUN_ENDED and r.run or RUN_ENDED .. r.run, result)
  else
    acked(r, result)
  end
  return true
end

-- Acks all messages at once, if they only have to leave; returns whether it did.
local function ack_all(width)
  local ids, members, last = {}, {}, nil
  local readable, token, until_, successor, stopping, _
  for i = 3, #ARGV, width do ids[#ids + 1] = ARGV[i] end
  if #ids == 0 or numbers.keep > 0 or has('h') or limited then return false end
  for i, lease in ipairs(call('HMGET', LEASES, unpack(ids))) do
    local mark = lease and sub(lease, #LEASE + ORDER + 1)
    if not lease or mark ~= last then  -- most leases of one ack are of one claim
      last, readable, token, until_, successor, _, _, _, _, stopping = mark, pcall(read_held, lease)
      if not (readable and token) or until_ <= now or successor or stopping then return false end
    end
    if token ~= ARGV[4 + (i - 1) * width] then return false end
    members[i] = sub(lease, #LEASE + 1, #LEASE + ORDER) .. ids[i]
  end
  advance()
  count('acked', #ids)
  if has('g') then drop(ids) else call('HDEL', RECORDS, unpack(ids)) end
  call('HDEL', LEASES, unpack(ids))
  call('ZREM', LEASED, unpack(members))
  return true
end

define('ack', {'allow-oom'}, {'keep', 'acked'}, function(width)
  if not ack_all(width) then return change_each(width, ack) end
  return finish()
end)
end

-- renew: the runs of messages that repeat end, and the next run of each takes its place. One that repeats no more ends:
-- it was cancelled, or has a successor, or its group is closed.
--   how  acked; dead: who held them has put dead letters of them, but of the last ones; expired: they were not
--        delivered; ended: they have ended before
-- ARGV from 3 on, four for each, no id twice: id, token, result in JSON or empty, and the next run: when it is due, a
--   blank and which one it is; empty: it was the last one
-- Reply: as change
local how  -- of the call at hand

-- Returns who made the last attempt that failed, or nil.
local function failed_by(r)
  local last = r.failures[#r.failures]
  return last and last[3]
end

-- Ends a message with a run that was not acked; `last`: as its rule says. Else somebody has cancelled it meanwhile, and
-- a dead letter of the run was put before.
local function ended_run(r, last)
  if r.stopping then return stopped(r) end
  r.run = nil
  if last and how ~= 'ended' and not (r.successor or r.shut) then
    remember_end(r, how, how == 'dead' and failed_by(r) or nil)
    return set_aside(r, how, how == 'dead' and 'died' or how)
  end
  remember_end(r, 'cancelled')
  if r.successor then
    count('cancelled')
    count('put')
    return follow(r)
  end
  delete(r, 'cancelled')
  r.due = nil
end

-- Lets the next run of a message take its place; returns whether the token is that of its lease.
local function renew(r, token, result, following)
  if r.token ~= token then return false end
  closing.weigh_successor(r)
  local due, run = match(following, '^(%d+) (.*)$')
  if due and repeats(r) then
    if how == 'acked' then
      acked_run(r, tonumber(due), run, result)
      return true
    end
    if how ~= 'ended' then remember_end(r, how, how == 'dead' and failed_by(r) or nil) end
    if how == 'expired' then
      count('expired')
      count('put')
    end
    next_run(r, tonumber(due), run)
  elseif how == 'acked' then
    acked(r, result)
  else
    ended_run(r, following == '')
  end
  return true
end

define('renew', {'allow-oom'}, {'keep', 'acked'}, function(...)
  how = ...
  return change_each(4, renew)
end)
end

-- edit: change the named fields of messages that no worker holds, dead letters included.
--   at, after  when it is due: a time, or milliseconds from now; nil, nil: it stays, and only then dead letters are
--              changed
--   due, version  what the caller saw (see is_still), or nil
--   given      the fields of a record that change; expires is false where a message does not expire any more, rule and
--              run where it repeats no more
--   width  2, or 4 with times of each
-- ARGV from 3 on, so many for each: id, version that the caller saw or empty, its own due time or empty, and its own
--   rule, a line feed and its own run, each of these or empty
-- Reply: [now, change, [outcome of each], []]
local edited  -- `given` of the call at hand

-- Edits a message; returns whether it may be.
local function edit(r, version, own_due, own_time)
  local due = tonumber(own_due) or moment
  if r.token or r.state and (r.state ~= 'dead' or due) then return false end
  local last = r.failures[#r.failures]
  if r.state and last and find(last[4], '^in transit by bide ') then
    return false  -- a move or import has it under way: the change would be lost
  end
  if not is_still(r, if_due, version ~= '' and version or if_version) then return false end
  local is_ready = not r.state and not due and not call('ZSCORE', DELAYED, r.member)
  if due then plan(r, due) end
  set_group(r, edited.group or r.group)
  -- With another rule and another run, this one has all attempts. If the message repeats no longer, it is delivered
  -- once more: also if this run has used them up.
  local begins = edited.run and edited.rule ~= r.rule and edited.run ~= r.run
  if (begins or edited.run == false and r.run and r.attempt >= r.attempts) and not r.state then
    r.attempt, r.failures = 0, {}
  end
  for name, value in pairs(edited) do r[name] = value end
  local rule, run = match(own_time, '^([^\n]+)'), match(own_time, '\n(.+)$')
  r.expires, r.rule, r.run = r.expires or nil, rule or r.rule or nil, run or r.run or nil
  if edited.expires then r.expires = r.expires - (r.due - (r.planned or r.due)) end  -- a retry keeps when it expires
  if r.state then
    save(r)
  elseif is_ready then
    to_ready(r)
  else
    to_delayed(r)
  end
  return true
end

define('edit', {}, {}, function(at, after, due, version, given, width)
  moment, if_due, if_version, edited = at or after and now + after, due, version, given
  return change_each(width, edit)
end)

-- sweep: delete, or count, messages that a rule names, a slice at a time.
--   which   one or several: see ranges; or group
--   after, before  bounds of due, or nil; of ended messages, `before` bounds the time of the end
--   group   or nil; limit; cursor: of the slice before (of a group), or nil
--   counter of the deleted ones, or nil; deletes: else it only counts
--   by      who gives the command, or nil
-- Reply: [now, change, how many, cursor or null]
define('sweep', {'allow-oom'}, {}, function(which, after, before, group, limit, cursor, counted, deletes, by)
  local affected = 0
  actor = by
  if deletes then advance() end

  -- Deletes members of a set, or of READY, where some may be by now.
  local function delete_all(members, set)
    if #members == 0 then return end
    drop(ids_of(members), counted)
    if counted then count(counted, #members) end
    affected = affected + #members
    if call('ZREM', set, unpack(members)) < #members then call('ZREM', READY, unpack(members)) end
  end

  -- Deletes or counts the messages that are in the ranges of a word of `which`.
  local function sweep(which)
    for _, range in ipairs(ranges(which, after, before)) do
      local set, low, high = range[1], int(range[2]), int(range[3])
      if not deletes then
        affected = affected + call('ZCOUNT', set, low, high)
      elseif affected < limit then
        delete_all(call('ZRANGEBYSCORE', set, low, high, 'LIMIT', 0, limit - affected), set)
      end
    end
  end

  local following  -- the cursor of the next slice
  if which == 'group' then
    local prefix = group .. '\1'
    local low = not cursor and '[' .. prefix or '(' .. prefix .. cursor
    local entries = call('ZRANGEBYLEX', GROUPS, low, '(' .. group .. '\2', 'LIMIT', 0, GROUP_ENTRIES)
    local chosen = {}
    for _, entry in ipairs(entries) do
      if #chosen >= limit then break end
      local member = sub(entry, #prefix + 1)
      local id = sub(member, ORDER + 1)
      local text = call('HGET', RECORDS, id)
      local r = text and parse(id, text)
      if r and not r.state and (not after or r.due >= after) and (not before or r.due < before)
        and call('HEXISTS', LEASES, id) == 0 then
        chosen[#chosen + 1] = member
      end
      following = member
    end
    if deletes then delete_all(chosen, DELAYED) else affected = #chosen end
    if #entries < GROUP_ENTRIES and affected < limit then following = nil end
  else
    for each in string.gmatch(which, '%a+') do sweep(each) end
  end
  return (deletes and finish or answer)(affected, following or null)
end)

-- Returns whether a rule names a leased message, whose worker was not asked to stop yet.
local function is_named(id, text, after, before, group)
  local r, lease = parse(id, text), read_lease(call('HGET', LEASES, id))
  return r and lease and not lease.stopping and (not group or r.group == group)
    and (not after or r.due >= after) and (not before or r.due < before)
end

-- stop: ask the workers of leased messages to stop that a rule names, or count these, a slice at a time.
--   after, before, group  what they have in common, or nil
--   limit; until, order: place of the last one that the slice before has looked at, 0 and empty at the beginning
--   stops  else it only counts
--   by     who gives the command, or nil
-- Reply: [now, change, how many the rule names, how many were cancelled since their leases were over, ids of those
--   whose workers are to stop, place or null]
define('stop', {'allow-oom'}, {'cancelled'}, function(after, before, group, limit, rank, order, stops, by)
  local found, cancelled, place = 0, 0, null
  verb, if_due, if_version, actor, stopping = 'stop', nil, nil, by, nil
  if stops then advance() end
  local first = behind(LEASED, rank, order)
  local members = call('ZRANGE', LEASED, first, first + GROUP_ENTRIES - 1, 'WITHSCORES')
  for i = 1, #members, 2 do
    if found >= limit then break end
    local id = sub(members[i], ORDER + 1)
    local text = call('HGET', RECORDS, id)
    if text and is_named(id, text, after, before, group) then
      found = found + 1
      local r = stops and locate(id, text)
      -- Its lease may be over, and its group closed: then it has ended, and not by this call.
      if r and not r.deleted and do_verb(r, '') then cancelled = cancelled + 1 end
    end
    place = {tonumber(members[i + 1]), sub(members[i], 1, ORDER)}
  end
  if #members < 2 * GROUP_ENTRIES and found < limit then place = null end
  tell_stopping()
  return (stops and finish or answer)(found, cancelled, stopping or {}, place)
end)
