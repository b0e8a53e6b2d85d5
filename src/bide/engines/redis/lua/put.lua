-- put: store messages. No id is named twice.
--   conflict  what becomes of a message that is there: keep, replace, or revive (dead ones only)
--   version   replace only messages that still are of it, and store nothing new; or nil
--   origin    see `read_origin`
--   places    in a queue of several shards, the place of each among those of all shards
-- ARGV:
--   from 3 on, for each message: its id; its record from `json` on; its plan. The plan is these values in
--     MessagePack, one behind the other: delay, at, latest (how long after the first put of the id at most),
--     priority, whether it expires, died, created, group; and, only if it has a rule, true
-- Reply: [now, change, next number, [outcome of each]]; it is when the message is due, if that was stored
local ranks, texts  -- what is written at the end: to DELAYED, rank and member; to RECORDS, id and record
local earliest      -- the first due time of these
local groups, leaving  -- nil until there is one: entries in groups; messages that leave a set, with where they go
local due, priority, died_at, created, group, rank, asked, latest  -- of the message at hand; asked: when it is to be due
local head, stamp  -- of the record at hand: how it begins; its due time and its time of creation, as they are there

-- Sets when the message at hand is due: `latest` milliseconds after `first`, when its id was first put, at the latest.
-- `since`: its time of creation.
local function due_after(first, since)
  due = latest and min(asked, first + latest) or asked
  rank, stamp = int(delayed_rank(due, priority)), pack(due, since)
end

-- Reads the plan of the message at hand.
local function read(plan)
  local _, delay, at, expires, ruled  -- the first one: where the values end
  _, delay, at, latest, priority, expires, died_at, created, group, ruled = cmsgpack.unpack_limit(plan, 9)
  head = ruled and RULED or RECORD
  if priority > 0 then flag('w', true) end
  if expires then flag('e', true) end
  if group ~= '' then flag('g', true) end
  asked = at or now + delay
  due_after(now, created or now)
end

-- Stores the message at hand in the order `order`. Returns the set that it is in now.
local function store(order, id, text)
  local member = order .. id
  local n = #texts
  texts[n + 1], texts[n + 2] = id, head .. order .. stamp .. text
  if group ~= '' then
    groups = groups or {}
    n = #groups
    groups[n + 1], groups[n + 2] = '0', group .. '\1' .. member
  end
  if died_at then
    call('ZADD', KEPT, int(BASE.dead + died_at), member)
    return KEPT
  end
  n = #ranks
  ranks[n + 1], ranks[n + 2] = rank, member
  if not earliest or due < earliest then earliest = due end
  return DELAYED
end

-- Returns the outcome of the message at hand if its group is closed; a dead letter is not delivered.
local function refusal()
  local until_ = not died_at and closing.closed_until(group)
  return until_ and {false, 'closed', null, until_} or nil
end

-- Stores the message at hand as the successor of one that is leased, in place of one that was put before.
local function succeed(r, text)
  local earlier = r.successor and parse(r.id, r.successor)
  local first = earlier and earlier.created > 0 and earlier.created or now
  due_after(first, first)
  r.successor = head .. r.order .. stamp .. text
  write_lease(r)
  r.follows = due
end

-- Returns the outcome of a put whose id is there, nil if the message at hand takes the place of that.
-- `known`: the record that is there; `text`: the record at hand.
local function meet(id, known, text, conflict, version)
  local r, unreadable = locate(id, known)
  if unreadable then return {false, 'unreadable'} end
  if r.deleted then  -- by the end of its lease; a new put takes over its order
    if conflict == 'revive' or version then return {false} end
    local refused = refusal()
    if refused then return refused end
    store(r.order, id, text)
    count('put')
    return
  end
  local revives = conflict == 'revive' and r.state == 'dead'
  local replaces = conflict == 'replace' and (not r.state or r.state == 'dead') and is_still(r, nil, version)
  local takes_place = not r.token and (revives or replaces)
  if r.token and conflict == 'replace' and not version and latest and not died_at then
    local refused = refusal()
    if refused then return refused end
    succeed(r, text)
    return outcome(r, true)
  end
  local refused = takes_place and refusal()
  if refused then
    if conflict == 'revive' then  -- it would wait in a closed group, so it is cancelled, as by `revive` in change.lua
      remember_end(r, 'cancelled')
      delete(r, 'cancelled')
    end
    return refused
  end
  if not takes_place then return outcome(r, false) end
  if r.state == 'dead' and not died_at then count('revived') end
  if r.group ~= '' and r.group ~= group then call('ZREM', GROUPS, r.group .. '\1' .. r.member) end
  local first = latest and r.created == 0 and now or r.created
  due_after(first, created or first)
  leaving = leaving or {}
  leaving[#leaving + 1] = {r, store(r.order, id, text)}
  remember_return(r)
end

define('put', {}, {'seq', 'put'}, function(conflict, version, origin, places)
  if not exists then return NO_SHARD end
  local ids, outcomes, total = {}, {}, (#ARGV - 2) / 3
  local known  -- the records that are there
  local seq, new = numbers.seq, 0  -- the next number; how many messages got one
  local done  -- numbers of those that were stored, as keys, if they are from an outbox
  ranks, texts, earliest, groups, leaving = {}, {}, nil, nil, nil
  read_origin(origin)
  for i = 1, total do ids[i] = ARGV[3 * i] end
  if total > 0 then known = call('HMGET', RECORDS, unpack(ids)) end
  for i = 1, total do
    local text, instead = ARGV[3 * i + 1], nil
    read(ARGV[3 * i + 2])
    if rows and is_forwarded(i) then
      instead = {false, 'forwarded'}
    elseif known[i] then
      instead = meet(ids[i], known[i], text, conflict, version)
    elseif conflict == 'revive' or version then
      instead = {false}
    else
      instead = refusal()
    end
    if not known[i] and not instead then
      if places and places[i] > seq then seq = places[i] end
      store(format('%012x', seq), ids[i], text)
      seq, new = seq + 1, new + 1
    end
    outcomes[i] = instead or due
    if rows and (not instead or instead[1]) then
      done = done or {}
      done[i] = true
    end
  end
  remember_rows(done)
  advance()
  count('seq', seq - numbers.seq)
  count('put', new)
  if #ranks > 0 then call('ZADD', DELAYED, unpack(ranks)) end
  if #texts > 0 then call('HSET', RECORDS, unpack(texts)) end
  if groups then call('ZADD', GROUPS, unpack(groups)) end
  for _, each in ipairs(leaving or {}) do leave(each[1], each[2]) end
  wake(earliest)
  return finish(seq, outcomes)
end)
