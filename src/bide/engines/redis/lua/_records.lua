-- Records: what is known of a message, and its way from set to set. R() are the functions.
--
-- A record begins with seq, due and kind, each at its place; due has thirteen digits. Of a message
-- that has nothing but a body the rest is short:
--   seq due kind priority attempt attempts
-- and kind is j (JSON) or b (bytes). Else kind is J or B, and the line goes on:
--   seq due kind priority attempt attempts expires aside ended |group| |headers| |failures|
-- Behind the line stand group, headers, failures and body, end to end. Instead of seq there may be a
-- tag, see _tags.lua.

local LAPSED = 'the lease lapsed: the holder died, hung, or needed longer than its lease'

-- Whether there is a group, an expiry or an end to be looked for in a record.
local function is_long(text)
  return byte(text, 29) < 97
end

local function records()
  local function parse(id, text)
    local r = {id = id}
    r.seq, r.due = place_of(text, ALIVE)
    r.due, r.member = tonumber(r.due), r.seq .. id
    local priority, attempt, attempts, at
    r.kind, priority, attempt, attempts, at = string.match(text, '^(%a) (%d+) (%d+) (%d+)()', 29)
    r.priority, r.attempt, r.attempts = tonumber(priority), tonumber(attempt), tonumber(attempts)
    if not is_long(text) then
      r.group, r.headers, r.failures, r.body = '', '', '', sub(text, at + 1)
      return r
    end
    local expires, aside, ended, g, h, f
    expires, aside, ended, g, h, f, at =
      string.match(text, '^ (%S+) (%S+) (%S+) (%d+) (%d+) (%d+)\n()', at)
    r.kind = string.lower(r.kind)
    r.expires, r.ended = tonumber(expires), tonumber(ended)
    if aside ~= '-' then r.aside = aside end
    r.group = sub(text, at, at + g - 1)
    at = at + g
    r.headers = sub(text, at, at + h - 1)
    at = at + h
    r.failures = sub(text, at, at + f - 1)
    r.body = sub(text, at + f)
    return r
  end

  local function format(r)
    local line = {r.seq, string.format('%013d', r.due), r.kind, r.priority, r.attempt, r.attempts}
    local rest = r.group .. r.headers .. r.failures
    if r.expires or r.aside or rest ~= '' then
      line[3] = string.upper(r.kind)
      line[7], line[8], line[9] = number(r.expires), r.aside or '-', number(r.ended)
      line[10], line[11], line[12] = #r.group, #r.headers, #r.failures
    end
    return concat(line, ' ') .. '\n' .. rest .. r.body
  end

  local function save(r)
    call('HSET', RECORDS, r.id, format(r))
  end

  local function to_delayed(r)
    call('ZADD', DELAYED, number(r.due * 256 + 255 - r.priority), r.member)
  end

  local function to_ready(r)
    call('ZADD', READY, number((255 - r.priority) * WEIGHT + r.due), r.member)
  end

  -- What was held goes back: no claim with an older token may take it from this shard.
  local function returned(r)
    local highest = tonumber(call('HGET', META, 'returned') or 0)
    if tonumber(r.token) > highest then call('HSET', META, 'returned', r.token) end
  end

  -- Nobody holds it any more. Said when it stands elsewhere: of half a change, left by a server that
  -- died, the lease lapses, and nothing is lost.
  local function let_go(r)
    if SHARDS ~= 1 then returned(r) end
    call('HDEL', HELD, r.id)
    L().let_go(r.lease, 1)
    r.lease, r.token, r.holder, r.until_ = nil, nil, nil, nil
  end

  local function leave(r)
    if r.aside then
      call('ZREM', ENDED[r.aside], r.member)
      r.aside, r.ended = nil, nil
    elseif r.token then
      let_go(r)
    elseif call('ZREM', DELAYED, r.member) == 0 then
      call('ZREM', READY, r.member)
    end
  end

  -- Sets aside a record that stands in no set; the caller saves it.
  local function aside(r, state, moment)
    r.aside, r.ended = state, moment
    call('ZADD', ENDED[state], number(moment), r.member)
    if state ~= 'dead' then flag('k', true) end
  end

  -- The caller says of all that are deleted together that they are gone: see _order.lua.
  local function delete(r)
    call('HDEL', RECORDS, r.id)
    if r.group ~= '' then call('ZREM', GROUPS, r.group .. '\1' .. r.member) end
  end

  -- Counts a failed attempt of a record that stands in no set; true when another one is left.
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
    count('lapsed')
    if failed(r, r.holder, LAPSED, r.until_) then
      to_ready(r)
      save(r)
    end
    let_go(r)
  end

  -- Returns the record of an id, a lease that is over taken back; nil when there is none.
  local function locate(id, text)
    text = text or call('HGET', RECORDS, id)
    if not text then return nil end
    local r = parse(id, text)
    if not r.aside then
      if has('h') and L().mark_in_whole(id) then L().spread() end
      local held = call('HGET', HELD, id)
      if held then
        r.token, r.until_, r.holder = string.match(held, '^(%d+) (%d+) (.*)$', NAME + 1)
        r.lease, r.until_ = r.token .. ' ' .. r.until_, tonumber(r.until_)
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
    local text = concat({number(r.due), r.priority, r.attempts, number(r.expires), r.kind,
      #r.group, #r.headers}, ' ') .. '\n' .. r.group .. r.headers .. r.body
    return sub(redis.sha1hex(text), 1, 16) == version
  end

  local function seen(r)
    return r.aside or r.token and 'leased' or r.due <= now and 'ready' or 'delayed'
  end

  -- One outcome: [done, state, due, until, holder], what is missing is null.
  local function outcome(r, done)
    if not r then return '[false]' end
    return cjson.encode({done, seen(r), r.due, r.until_ or r.ended or null, r.holder or null})
  end

  -- Returns the entries of groups that belong to ids whose records these are.
  local function grouped(ids, texts)
    local entries = {}
    for i, text in ipairs(texts) do
      if text and is_long(text) then
        local r = parse(ids[i], text)
        if r.group ~= '' then entries[#entries + 1] = r.group .. '\1' .. r.member end
      end
    end
    return entries
  end

  return {parse = parse, save = save, to_delayed = to_delayed, to_ready = to_ready, leave = leave,
    let_go = let_go,
    aside = aside, delete = delete, failed = failed, is_still = is_still, locate = locate,
    outcome = outcome, grouped = grouped}
end

local made_records
local function R()
  made_records = made_records or records()
  return made_records
end
