-- Ends: what a queue with `history` or `result_ttl` remembers of messages that have ended.
--
-- Of each id the last ends, the newest first, end to end. An end is a line, and behind it who ended the
-- message, its failures and its result:
--   moment how due attempt since |by| |failures| |result|
-- A length is - where there is no such thing.
local history, results  -- milliseconds

local function read_ends_settings()
  local found = call('HMGET', META, 'history', 'result_ttl')
  history, results = tonumber(found[1] or 0), tonumber(found[2] or 0)
end

-- Remembers how a message ends, if the queue does, and tells the lanes that wait for results; `by` and
-- `result` may be nil.
local function remember_end(r, how, by, result)
  if not has('h') or max(history, results) == 0 then return end
  local failures = history > 0 and r.failures ~= '' and r.failures or nil
  result = results > 0 and result or nil
  local parts = {concat({int(now), how, int(r.due), int(r.attempt),
    how == 'acked' and r.since ~= '' and r.since or '-', by and #by or '-',
    failures and #failures or '-', result and #result or '-'}, ' ') .. '\n',
    by or '', failures or '', result or ''}
  local known, at, n, most = call('HGET', ENDED, r.id), 1, 1, 20
  while known and n < most and at <= #known do
    local b, f, s, after = match(known, '^%d+ %a+ %d+ %d+ %S+ (%S+) (%S+) (%S+)\n()', at)
    if not after then break end
    at = after + tonumber(b ~= '-' and b or 0) + tonumber(f ~= '-' and f or 0) + tonumber(s ~= '-' and s or 0)
    n = n + 1
  end
  if known then parts[#parts + 1] = sub(known, 1, at - 1) end
  call('HSET', ENDED, r.id, concat(parts))
  call('ZADD', ENDINGS, int(now), r.id)
  for lane, until_ in string.gmatch(results > 0 and call('HGET', META, 'watchers') or '', '(%S+) (%d+)') do
    if tonumber(until_) > now then call('PUBLISH', 'bide:wake:' .. lane, QUEUE .. ' end ' .. r.id) end
  end
end

-- Forgets what was remembered long enough, 1000 ids at most.
function forget_ends()
  read_ends_settings()
  local old = call('ZRANGEBYSCORE', ENDINGS, '-inf', int(now - max(history, results)), 'LIMIT', 0, 1000)
  if #old > 0 then
    call('HDEL', ENDED, unpack(old))
    call('ZREM', ENDINGS, unpack(old))
  end
  if max(history, results) == 0 and call('EXISTS', ENDINGS) == 0 then flag('h', false) end
end
