-- configure: change the given settings.
-- ARGV 8 paused: 0 or 1, or empty; 9 keep: milliseconds, or empty; 10 actor, or empty; 11 how
-- many pauses are remembered; 12 history, 13 result_ttl: milliseconds, or empty; 14 limit, 15 rate,
-- 16 group_limit, 17 group_rate, or empty
-- Reply: [now, change, paused, keep, whether something may be claimed now, history, result_ttl, limit,
--   rate, group_limit, group_rate]

-- Notes that a pause begins or ends: [since, until or null, actor or null] of each.
local function note(begins)
  local pauses = cjson.decode(call('HGET', META, 'pauses') or '[]')
  if begins then
    pauses[#pauses + 1] = {now, null, ARGV[10] ~= '' and ARGV[10] or null}
    if #pauses > tonumber(ARGV[11]) then table.remove(pauses, 1) end
  elseif #pauses > 0 then
    pauses[#pauses][2] = now
  end
  if #pauses > 0 then call('HSET', META, 'pauses', cjson.encode(pauses)) end
end

-- Puts groups with leases where they are to be under other limits. Claims find the others. If there are
-- very many, the next claim lines up everything again, a step at a time.
local function settle_running()
  local low = '[r'
  for _ = 1, 1000 do
    local entry = call('ZRANGEBYLEX', LINES, low, '(s', 'LIMIT', 0, 1)[1]
    if not entry then return end
    local name = match(entry, '^r([^\1]*)')
    settle(name)
    low = '(r' .. name .. '\2'
  end
  call('HSET', META, 'unsettled', '1')
  unsettled = true
end

local function limits_text() return format('%d %d %d %d', limits_now()) end

-- Sets limits, nil: as it is. Returns whether one has changed.
local function set_limits(given)
  if not limited then read_limits() end
  local was_limited, was_full, before = limited, limited and is_full(), limits_text()
  limit, rate = given[1] or limit, given[2] or rate
  group_limit, group_rate = given[3] or group_limit, given[4] or group_rate
  limited = max(limit, rate, group_limit, group_rate) > 0
  if limits_text() == before then return false end
  if limited then begin_change() end
  flag('n', limited)
  if limited then call('HSET', META, 'limits', limits_text()) end
  if not limited then
    call('UNLINK', LINES, TURNS, SHARES)
    call('HDEL', META, 'limits', 'service', 'lining', 'unsettled', 'looked')
  elseif not was_limited then
    turn, last, freed = 0, 0, 0
    begin_lines()
    write_service()
    line_up_step()
  else
    if was_full and not is_full() then freed = now end
    write_service()
    settle_running()
  end
  if limited then settle_all() end
  return true
end

define('configure', {'allow-oom'}, {'keep'}, function()
  if not exists then return NO_SHARD end
  advance()
  local resumed = has('p') and ARGV[8] == '0'
  if ARGV[8] ~= '' then
    local paused = ARGV[8] == '1'
    if paused ~= has('p') then note(paused) end
    flag('p', paused)
  end
  if ARGV[9] ~= '' then
    numbers.keep = tonumber(ARGV[9])
    call('HSET', META, 'keep', ARGV[9])
  end
  if ARGV[12] ~= '' then call('HSET', META, 'history', ARGV[12]) end
  if ARGV[13] ~= '' then call('HSET', META, 'result_ttl', ARGV[13]) end
  read_ends_settings()
  if max(history, results) > 0 then flag('h', true) end
  local changed = set_limits({tonumber(ARGV[14]), tonumber(ARGV[15]), tonumber(ARGV[16]), tonumber(ARGV[17])})
  if resumed or changed then wake(now) end
  return finish(has('p'), numbers.keep, resumed or changed, history, results, limits_now())
end)

-- delete: delete this shard of a queue if nothing is in it.
-- ARGV 8 really: 1, or 0 to only look
-- Reply: [now, change, exists, delayed, ready, leased, dead, kept]; the last five are 0 if it was deleted
define('delete', {'allow-oom'}, {}, function()
  local delayed, ready, leased, dead, kept, due = sizes()
  local existed = exists
  if exists and ARGV[8] == '1' and delayed + ready + leased + dead + kept == 0 then
    advance()
    call('DEL', META)
    call('UNLINK', ENDED, ENDINGS, LINES, TURNS, SHARES, FORWARDED)
    limited = false
    call('HSET', META, 'change', int(change))
    expire_keys()
    -- Lanes wait: the next put makes the queue again and wakes one of them.
    if has('l') then call('HSET', META, 'flags', 'l') end
  end
  return finish(existed, delayed - due, ready + due, leased, dead, kept)
end)

-- make: make this shard of a queue if it is not there.
-- Reply: [now, change]
define('make', {'allow-oom'}, {}, function()
  if not exists then
    make()
    advance()
  end
  return finish()
end)
