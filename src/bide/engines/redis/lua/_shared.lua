-- What all verbs share; it stands in front of each of them.
--
-- KEYS, the same for every verb (see keys.py), all of one shard:
--   1 meta     hash: counters, settings, who leads the waiters
--   2 records  hash: id -> record
--   3 delayed  4 ready  5 leased  6 dead  7 acked  8 expired: sorted sets, rank -> seq .. id
--   9 held     hash: id -> seq, token, holder of a lease
--  10 groups   sorted set, all of score 0: group, \1, seq .. id
--  11 waiters  sorted set: lanes that wait, by the moment since when
--  12 order    hash: seq / 16 -> the ids of sixteen messages as they were put, a line each: a
--              digit that says how much of it is as in the first line, and the rest
--  13 try      string: the mark and the reply of one of the last changes of this lane
-- ARGV, the first ones of every verb:
--   1 now      Unix milliseconds, or empty: the server's clock
--   2 mark     of this call; with a ? before it when it is sent again; empty: reads only
--   3 lane     whose waiting claims are told of by a channel; empty: nobody waits there
--   4 queue    its name
--
-- A record is one line of numbers and words, then group, headers, failures and body, end to end:
--   seq due priority attempt attempts expires aside ended kind |group| |headers| |failures|

local META, RECORDS, DELAYED, READY, LEASED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ENDED = {dead = KEYS[6], acked = KEYS[7], expired = KEYS[8]}
local HELD, GROUPS, WAITERS, ORDER, TRY = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local CHUNK = 16
local MARK, LANE, QUEUE = ARGV[2], ARGV[3], ARGV[4]
local WEIGHT, SEQ, BEAT, FORGET, EXPIRED_KEEP = 4398046511104, 10, 50, 1000, 86400000
local LAPSED = 'the lease lapsed: the holder died, hung, or needed longer than its lease'
local null = cjson.null
local call = redis.call

if string.sub(MARK, 1, 1) == '?' then
  MARK = string.sub(MARK, 2)
  local last = redis.call('GET', TRY)
  if last and string.sub(last, 1, #MARK + 1) == MARK .. ' ' then
    redis.call('SET', TRY, last, 'PX', 60000)  -- a WAIT behind this waits for what it tells of
    return string.sub(last, #MARK + 2)
  end
end

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local meta = call('HMGET', META, 'token', 'keep', 'keeps', 'leader', 'lead_at', 'paused',
  'weighted', 'grouped', 'expiring', 'waits')
local TOKEN, KEEP, KEEPS, LEADER, LEAD_AT, PAUSED, WEIGHTED, GROUPED, EXPIRING, WAITS =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local exists = meta[TOKEN] ~= false

local function flag(number, name)
  if not meta[number] then
    meta[number] = '1'
    call('HSET', META, name, 1)
  end
end

local tally = {}
local function count(name, times)
  tally[name] = (tally[name] or 0) + (times or 1)
end

-- Calls a variadic command with parts of a list, each below what unpack can take.
local function many(command, key, list)
  local total = 0
  for first = 1, #list, 4000 do
    total = total + call(command, key, unpack(list, first, math.min(first + 3999, #list)))
  end
  return total
end

local function each(command, key, list)
  if #list <= 4000 then
    return #list > 0 and call(command, key, unpack(list)) or {}
  end
  local found = {}
  for first = 1, #list, 4000 do
    for _, value in ipairs(call(command, key, unpack(list, first, math.min(first + 3999, #list)))) do
      found[#found + 1] = value
    end
  end
  return found
end

local function number(value)
  return value and string.format('%.0f', value) or '-'
end

-- Records. What not every call needs is made only when it is: R() are the functions for records.

local function records()
  local function parse(id, text)
    local r = {id = id}
    local at, g, h, f
    r.seq, r.due, r.priority, r.attempt, r.attempts, r.expires, r.aside, r.ended, r.kind, g, h, f, at =
      string.match(text, '^(%x+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%a) (%d+) (%d+) (%d+)\n()')
    r.member = r.seq .. id
    r.due, r.priority = tonumber(r.due), tonumber(r.priority)
    r.attempt, r.attempts = tonumber(r.attempt), tonumber(r.attempts)
    r.expires, r.ended = tonumber(r.expires), tonumber(r.ended)
    if r.aside == '-' then r.aside = nil end
    r.group = string.sub(text, at, at + g - 1)
    at = at + g
    r.headers = string.sub(text, at, at + h - 1)
    at = at + h
    r.failures = string.sub(text, at, at + f - 1)
    r.body = string.sub(text, at + f)
    return r
  end

  local function format(r)
    return table.concat({r.seq, number(r.due), r.priority, r.attempt, r.attempts, number(r.expires),
      r.aside or '-', number(r.ended), r.kind, #r.group, #r.headers, #r.failures}, ' ')
      .. '\n' .. r.group .. r.headers .. r.failures .. r.body
  end

  local function save(r)
    call('HSET', RECORDS, r.id, format(r))
  end

  local function delayed_rank(r) return r.due * 256 + 255 - r.priority end
  local function ready_rank(r) return (255 - r.priority) * WEIGHT + r.due end

  local function to_delayed(r) call('ZADD', DELAYED, delayed_rank(r), r.member) end
  local function to_ready(r) call('ZADD', READY, ready_rank(r), r.member) end

  local function leave(r)
    if r.aside then
      call('ZREM', ENDED[r.aside], r.member)
      r.aside, r.ended = nil, nil
    elseif r.token then
      call('ZREM', LEASED, r.member)
      call('HDEL', HELD, r.id)
      r.token, r.holder, r.until_ = nil, nil, nil
    elseif call('ZREM', DELAYED, r.member) == 0 then
      call('ZREM', READY, r.member)
    end
  end

  -- Sets aside a record that stands nowhere; the caller saves it.
  local function aside(r, state, moment)
    r.aside, r.ended = state, moment
    call('ZADD', ENDED[state], moment, r.member)
    if state ~= 'dead' then flag(KEEPS, 'keeps') end
  end

  local function delete(r)
    call('HDEL', RECORDS, r.id)
    if r.group ~= '' then
      call('ZREM', GROUPS, r.group .. '\1' .. r.member)
    end
  end

  -- Counts a failed attempt of a record that stands nowhere any more; true when another one is left.
  local function failed(r, holder, reason, moment, final)
    r.attempt = r.attempt + 1
    local failures = r.failures ~= '' and cjson.decode(r.failures) or {}
    failures[#failures + 1] = {r.attempt, moment, holder, reason}
    while #failures > 20 do table.remove(failures, 1) end
    r.failures = cjson.encode(failures)
    if final or r.attempt >= r.attempts then
      aside(r, 'dead', now)
      count('died')
      save(r)
      return false
    end
    return true
  end

  local function lapse(r)
    local holder, moment = r.holder, r.until_
    leave(r)
    count('lapsed')
    if failed(r, holder, LAPSED, moment) then
      to_ready(r)
      save(r)
    end
  end

  -- Reads what `held` says of a lease.
  local function holding(r, held)
    r.token, r.holder = string.match(string.sub(held, SEQ + 1), '^(%d+) (.*)$')
    r.until_ = tonumber(call('ZSCORE', LEASED, r.member))
  end

  -- Returns the record of an id, a lease that is over taken back; nil when there is none.
  local function locate(id, text)
    text = text or call('HGET', RECORDS, id)
    if not text then return nil end
    local r = parse(id, text)
    if not r.aside then
      local held = call('HGET', HELD, id)
      if held then
        holding(r, held)
        if r.until_ <= now then lapse(r) end
      end
    end
    return r
  end

  -- Whether a record is what the caller saw: "due", "vVERSION" or both; see Message.version.
  local function is_still(r, wanted)
    local due, version = string.match(wanted, '^(%d*)v?(%x*)$')
    if due ~= '' and tonumber(due) ~= r.due then return false end
    if version == '' then return true end
    local text = table.concat({number(r.due), r.priority, r.attempts, number(r.expires), r.kind,
      #r.group, #r.headers}, ' ') .. '\n' .. r.group .. r.headers .. r.body
    return string.sub(redis.sha1hex(text), 1, 16) == version
  end

  local function seen(r)
    return r.aside or r.token and 'leased' or r.due <= now and 'ready' or 'delayed'
  end

  -- One outcome: [done, state, due, until, holder], what is missing is null.
  local function outcome(r, done)
    if not r then return '[false]' end
    return cjson.encode({done, seen(r), r.due, r.until_ or r.ended or null, r.holder or null})
  end
  return {parse = parse, save = save, to_delayed = to_delayed, to_ready = to_ready, leave = leave,
    aside = aside, delete = delete, failed = failed, is_still = is_still, locate = locate,
    outcome = outcome}
end

local made_records
local function R()
  made_records = made_records or records()
  return made_records
end

-- Waking. Of all lanes that wait, one leads: it asks at the next moment. A second one asks a beat
-- later, in case that the first has died. The others hear of a change when it is their turn.

local function waking()
  local function tell(lane, moment)
    local hint = ARGV[1] == '' and 'in ' .. number(moment - now) or 'at ' .. number(moment)
    return call('PUBLISH', 'bide:wake:' .. lane, QUEUE .. ' ' .. hint) > 0
  end

  local function lead(lane, moment)
    meta[LEADER], meta[LEAD_AT] = lane, moment
    call('HSET', META, 'leader', lane, 'lead_at', number(moment))
  end

  local function nobody_leads()
    if meta[LEADER] then
      meta[LEADER], meta[LEAD_AT] = false, false
      call('HDEL', META, 'leader', 'lead_at')
    end
  end

  local function first_waiter()
    return call('ZRANGE', WAITERS, 0, 0)[1]
  end

  local function deputize(moment)
    local lane = first_waiter()
    while lane and not tell(lane, moment + BEAT) do
      call('ZREM', WAITERS, lane)
      lane = first_waiter()
    end
  end

  local function elect(moment)
    local lane = first_waiter()
    while lane do
      call('ZREM', WAITERS, lane)
      if tell(lane, moment) then
        lead(lane, moment)
        return deputize(moment)
      end
      lane = first_waiter()
    end
    nobody_leads()
    if meta[WAITS] then
      meta[WAITS] = false
      call('HDEL', META, 'waits')
    end
  end

  -- Something can be claimed from a moment on.
  local function wake(moment)
    if not moment then return end
    local at = tonumber(meta[LEAD_AT] or nil)
    if at and at + BEAT > now then
      if at <= moment then return end
      if tell(meta[LEADER], moment) then
        lead(meta[LEADER], moment)
        return deputize(moment)
      end
    end
    elect(moment)
  end
  return {lead = lead, nobody_leads = nobody_leads, first_waiter = first_waiter,
    deputize = deputize, elect = elect, wake = wake}
end

local made_waking
local function W()
  made_waking = made_waking or waking()
  return made_waking
end

-- Something can be claimed from a moment on.
local function wake(moment)
  if moment and (meta[LEADER] or meta[WAITS]) then W().wake(moment) end
end

-- The order of puts. Ids stay there after their messages have gone, until half of it is about
-- nothing; then each deletion also looks into a few chunks, in turn, and drops what is over.

local function in_order(base, ids)
  local chunk = math.floor(base / CHUNK)
  local fields, lines, n, first = {}, {}, 0, nil
  local sub, long, short = string.sub, nil, nil
  if base % CHUNK > 0 then
    lines[1] = call('HGET', ORDER, chunk) or '0'
    n, first = 1, string.match(lines[1], '^0([^\n]*)')
    long, short = sub(first, 1, 24), sub(first, 1, 8)
  end
  local left = CHUNK - base % CHUNK
  for _, id in ipairs(ids) do
    n = n + 1
    if not first then
      first, long, short = id, sub(id, 1, 24), sub(id, 1, 8)
      lines[n] = '0' .. id
    elseif sub(id, 1, 24) == long then
      lines[n] = '2' .. sub(id, 25)
    elseif sub(id, 1, 8) == short then
      lines[n] = '1' .. sub(id, 9)
    else
      lines[n] = '0' .. id
    end
    left = left - 1
    if left == 0 then
      fields[#fields + 1] = chunk
      fields[#fields + 1] = table.concat(lines, '\n')
      chunk, lines, n, first, left = chunk + 1, {}, 0, nil, CHUNK
    end
  end
  if #lines > 0 then
    fields[#fields + 1] = chunk
    fields[#fields + 1] = table.concat(lines, '\n')
  end
  call('HSET', ORDER, unpack(fields))
end

-- Returns the ids of a chunk, what seq each has, and the lines that tell of them.
local function lines_of(chunk, text)
  local ids, seqs, lines, first = {}, {}, {}, nil
  local seq = chunk * CHUNK
  for line in string.gmatch(text .. '\n', '(.-)\n') do
    seq = seq + 1
    local code, rest = string.sub(line, 1, 1), string.sub(line, 2)
    if code == '2' then
      rest = string.sub(first, 1, 24) .. rest
    elseif code == '1' then
      rest = string.sub(first, 1, 8) .. rest
    end
    first = first or rest
    if rest ~= '' then
      ids[#ids + 1] = rest
      seqs[#seqs + 1] = string.format('%010x', seq)
      lines[#lines + 1] = line
    end
  end
  return ids, seqs, lines
end

local function sweep_order(deleted)
  local marks = call('HMGET', META, 'seq', 'swept', 'lowest')
  local last = math.floor(tonumber(marks[1] or 0) / CHUNK)  -- it is still written to
  local at, lowest = tonumber(marks[2] or 0), tonumber(marks[3] or 0)
  for _ = 1, math.ceil(deleted / 8) do
    if at >= last then at = lowest end
    if at >= last then break end
    local text = call('HGET', ORDER, at)
    local left = 0
    if text then
      local ids, seqs, lines = lines_of(at, text)
      local kept = {}
      for i = 1, CHUNK do kept[i] = '' end
      kept[1] = lines[1]  -- the others lean on it
      for i, found in ipairs(each('HMGET', RECORDS, ids)) do
        if found and string.sub(found, 1, SEQ) == seqs[i] then
          kept[tonumber(seqs[i], 16) - at * CHUNK] = lines[i]
          left = left + 1
        end
      end
      if left == 0 then
        call('HDEL', ORDER, at)
      elseif left + 1 < #ids then
        call('HSET', ORDER, at, table.concat(kept, '\n'))
      end
    end
    if left == 0 and at == lowest then lowest = at + 1 end
    at = at + 1
  end
  call('HSET', META, 'swept', at, 'lowest', lowest)
end

local function tidy(deleted)
  if call('HLEN', ORDER) * CHUNK > 2 * call('HLEN', RECORDS) + 1024 then sweep_order(deleted) end
end

local function forget_some()
  local keep = tonumber(meta[KEEP] or 0)
  local ends = {acked = now - keep, expired = now - math.max(keep, EXPIRED_KEEP)}
  for state, before in pairs(ends) do
    local members = call('ZRANGEBYSCORE', ENDED[state], '-inf', before, 'LIMIT', 0, FORGET)
    if #members > 0 then
      local ids = {}
      for i, member in ipairs(members) do ids[i] = string.sub(member, SEQ + 1) end
      if meta[GROUPED] then
        for i, text in ipairs(call('HMGET', RECORDS, unpack(ids))) do
          local r = R().parse(ids[i], text)
          if r.group ~= '' then call('ZREM', GROUPS, r.group .. '\1' .. r.member) end
        end
      end
      call('ZREM', ENDED[state], unpack(members))
      call('HDEL', RECORDS, unpack(ids))
      tidy(#ids)
    end
  end
end

local function forget()
  if meta[KEEPS] then forget_some() end
end

-- Beginning and end of every change.

local made = 0
local function make()
  if not exists then
    exists, made = true, 1
    meta[TOKEN] = number(now)
    call('HSET', META, 'token', meta[TOKEN])
  end
end

local function finish(reply)
  for name, times in pairs(tally) do call('HINCRBY', META, name, times) end
  call('SET', TRY, MARK .. ' ' .. reply, 'PX', 60000)
  return reply
end

local function answer(outcomes)
  return finish('[' .. number(now) .. ',' .. made .. ',[' .. table.concat(outcomes, ',') .. ']]')
end
