-- change: do one thing to each of some messages.
-- ARGV 8 verb; of those that know it 9 when: a moment, or + and milliseconds from now; 10 still: what
--      the caller saw (see is_still), or empty; 11 reason; 12 actor: who gives the command, or empty;
--      13 origin: see _forwarded.lua; from 14 on, two for each: id, and token of the lease, or what the
--      caller saw of this one, or empty
--   cancel      delete messages that nobody holds, if they are still what the caller saw
--   reschedule  let them be due at another moment, likewise
--   purge       delete dead letters
--   revive      let dead letters be delivered again, with all their attempts
--   extend      let leases end at another moment
--   retry       give messages back, to be delivered again; without attempts left they die
--   untouched   give messages back as if they had not been claimed
--   bury        let them die; without a token, those that nobody holds, which counts no attempt
--   release     end the lease, whoever holds it: a failed attempt, ready again at once
--   mend        make a dead letter of what a claim has leased and its client cannot read
-- Reply: [now, change, [outcome of each], nexts]; the state of a message that nobody holds and whose record
--   cannot be read is `unreadable`; nexts: of a limited queue, after each change, when a claim
--   gets something of what is ready, or null if that is not before a lease ends
local verb, moment, still, reason

local function do_it(r, token)
  if verb == 'cancel' and r.successor and still == '' and token == '' then
    r.follows = (parse(r.id, r.successor) or r).due
    call('HSET', LEASES, r.id, r.lease)
    return false
  end
  if verb == 'extend' or verb == 'retry' or verb == 'untouched' or verb == 'mend'
    or verb == 'bury' and token ~= '' then
    if r.token ~= token then return false end
  elseif verb == 'release' then
    if not r.token then return false end
  elseif verb == 'purge' or verb == 'revive' then
    if r.state ~= 'dead' or token ~= '' and not is_still(r, token) then return false end
  else
    local seen = token ~= '' and token or still
    if r.token or r.state or seen ~= '' and not is_still(r, seen) then return false end
  end

  if verb == 'mend' then
    mend(r, call('HGET', RECORDS, r.id))
  elseif r.successor and verb ~= 'extend' then
    if verb ~= 'untouched' and failed(r, reason, now, true, verb == 'bury') then count('retried') end
    follow(r)
  elseif verb == 'cancel' then
    remember_end(r, 'cancelled', actor)
    delete(r, 'cancelled')
  elseif verb == 'purge' then
    remember_end(r, 'purged', actor)
    delete(r, 'purged')
  elseif verb == 'bury' then
    failed(r, reason, now, token ~= '', true)
  elseif verb == 'extend' then
    r.until_ = moment
    local times = int((tonumber(r.extended) or 0) + 1)
    local line = concat({r.order, r.token, int(moment), r.holder .. '\t' .. r.since, times}, ' ')
    call('HSET', LEASES, r.id, r.successor and line .. '\n' .. r.successor or line)
    call('ZADD', LEASED, int(moment), r.member)
  elseif verb == 'release' then
    if failed(r, reason, now, true) then
      count('retried')
      to_ready(r)
    end
  elseif verb == 'untouched' and moment == now then
    to_ready(r)
  elseif verb == 'untouched' or verb ~= 'retry' or failed(r, reason, now, true) then
    if verb == 'retry' then count('retried') end
    if verb == 'revive' then
      revive(r, moment)
    elseif verb == 'reschedule' then
      plan(r, moment)
    else
      if r.expires then r.expires = r.expires - (moment - r.due) end  -- when it expires stays
      r.planned, r.due = r.planned or r.due, moment
    end
    to_delayed(r)
  end
  return true
end

-- Does `act` to each message that is named from `first` on, at the moment that `when` says; replies.
local function change_each(when, first, act, origin)
  local outcomes, nexts, changed, earliest = {}, {}, {}, nil
  moment = when ~= '' and (sub(when, 1, 1) == '+' and now + when or tonumber(when))
  advance()
  read_origin(origin)
  for i = first, #ARGV, 2 do
    local number = #outcomes + 1
    if rows and is_forwarded(number) then
      outcomes[number] = {false, 'forwarded'}
    else
      local r, unreadable = locate(ARGV[i])
      local done = r ~= nil and act(r, ARGV[i + 1])
      if done and not (r.gone or r.state or r.token) then earliest = min(earliest or r.due, r.due) end
      if done and rows then changed[number] = true end
      outcomes[number] = unreadable and {false, 'unreadable'} or outcome(r, done)
    end
    if limited then nexts[#nexts + 1] = opens_next() end
  end
  remember_rows(changed)
  wake(earliest and max(earliest, now))
  return finish(outcomes, nexts)
end

define('change', {'allow-oom'}, function()
  verb, still, reason = ARGV[8], ARGV[10], ARGV[11]
  actor = ARGV[12] ~= '' and ARGV[12] or nil
  return change_each(ARGV[9], 14, do_it, ARGV[13])
end)

-- edit: change what is named of messages that nobody holds, dead letters included.
-- ARGV 8 still: what the caller saw (see is_still), or empty; 9 due: a moment, or + and milliseconds from
--      now; empty: it stays, and only then dead letters are changed; 10 flags, as of put
--      Of the next ones, empty: it stays. 11 body, behind its kind; 12 priority; 13 attempts; 14 expires, or
--      -; 15 group and 16 headers, behind a =, and nothing behind it: without; from 17 on, two for each:
--      id, and empty
-- Reply: [now, change, [outcome of each], []]
local function edit(r)
  local still, body, expires, group, headers = ARGV[8], ARGV[11], ARGV[14], ARGV[15], ARGV[16]
  if r.token or r.state and (r.state ~= 'dead' or moment) then return false end
  if r.state and find(r.failures, '"in transit by bide [^"]*"[^"]*%]%]$') then
    return false  -- a move or import has it under way: the change would be lost
  end
  if still ~= '' and not is_still(r, still) then return false end
  local is_ready = not r.state and not moment and not call('ZSCORE', DELAYED, r.member)
  if moment then plan(r, moment) end
  if body ~= '' then r.kind, r.body = sub(body, 1, 1), sub(body, 2) end
  if ARGV[12] ~= '' then r.priority = tonumber(ARGV[12]) end
  if ARGV[13] ~= '' then r.attempts = tonumber(ARGV[13]) end
  if expires == '-' then
    r.expires = nil
  elseif expires ~= '' then  -- a retry keeps the time at which it expires
    r.expires = expires - (r.due - (r.planned or r.due))
  end
  if group ~= '' then set_group(r, sub(group, 2)) end
  if headers ~= '' then r.headers = sub(headers, 2) end
  if r.state then
    save(r)
  elseif is_ready then
    to_ready(r)
  else
    to_delayed(r)
  end
  for letter in string.gmatch(ARGV[10], '%a') do flag(letter, true) end
  return true
end

define('edit', {}, function() return change_each(ARGV[9], 17, edit, '') end)
