-- configure: change the given settings.
--   paused, keep (milliseconds), history and result_ttl (likewise), overdue (a text): nil where it stays
--   limits  limit, rate, group_limit, group_rate, likewise
--   by    who gives the command, or nil
--   until_, lasting  when the pause ends by itself, or how long it lasts, in milliseconds; nil: it does not
-- Reply: [now, change, paused (its end, or true without one), keep, whether something may be claimed now,
--   history, result_ttl, overdue, limit, rate, group_limit, group_rate]

-- Notes in META that a pause begins or ends, or when the present one is to end; there, pauses are [since,
-- until or null, actor or null].
local function note_pause(paused, by, ends)
  local pauses = read_pauses()
  if paused and (#pauses == 0 or not has('p')) then
    pauses[#pauses + 1] = {now, ends or null, by or null}
    if #pauses > PAUSES then table.remove(pauses, 1) end
  elseif #pauses > 0 then
    pauses[#pauses][2] = paused and (ends or null) or not paused and now
  end
  if #pauses > 0 then call('HSET', META, 'pauses', cjson.encode(pauses)) end
end

-- Puts groups with leases where they are to be under other limits. Claims find the others. If there are
-- very many, the next claim lines up everything again, a step at a time.
local function settle_running()
  local low = '[r'
  for _ = 1, BULK do
    local entry = call('ZRANGEBYLEX', LINES, low, '(s', 'LIMIT', 0, 1)[1]
    if not entry then return end
    local name = match(entry, '^r([^\1]*)')
    settle(name)
    low = '(r' .. name .. '\2'
  end
  call('HSET', META, 'unsettled', '1')
  unsettled = true
end

-- Returns the limits as META has them.
local function limits_text() return format('%d %d %d %d', limits_now()) end

-- Sets limits, nil: as it is. Returns whether one has changed.
local function set_limits(given)
  if not limited then read_limits() end
  local was_limited, before = limited, limits_text()
  limit, rate = given[1] or limit, given[2] or rate
  group_limit, group_rate = given[3] or group_limit, given[4] or group_rate
  limited = max(limit, rate, group_limit, group_rate) > 0
  if limits_text() == before then return false end
  if limited then begin_change() end
  flag('n', limited)
  if limited then call('HSET', META, 'limits', limits_text()) end
  if not limited then
    call('UNLINK', LINES, HEADS, TAGS, OLD_TURNS, OLD_SHARES)
    call('HDEL', META, 'limits', 'served', 'lining', 'unsettled', 'service', 'looked')
  elseif not was_limited then
    tag, last = 0, 0
    begin_lines()
    write_served()
    line_up_step()
  else
    settle_running()
  end
  if limited then settle_all() end
  return true
end

-- Forgets, of ids that have ended again since, the ends that were remembered for long enough: with settings that
-- last longer they would be seen again.
local function forget_older_ends()
  for _, id in ipairs(call('ZRANGE', ENDINGS, -BULK, -1)) do
    local readable, ends = pcall(cmsgpack.unpack, call('HGET', ENDED, id) or '')
    local number = readable and type(ends) == 'table' and #ends or 0
    while number > 1 and ends[number][1] <= now - ends_kept() do  -- the oldest one is the last one
      ends[number] = nil
      number = number - 1
    end
    if number > 0 then call('HSET', ENDED, id, cmsgpack.pack(ends)) end
  end
end

define('configure', {'allow-oom'}, {'keep'}, function(paused, keep, by, until_, lasting, history_, ttl, overdue, limits)
  if not exists then return NO_SHARD end
  advance()
  local ends = lasting and now + lasting or until_
  if paused and ends and ends <= now then paused = false end
  local resumed = has('p') and paused == false
  if paused or resumed then note_pause(paused, by, ends) end
  if paused ~= nil then
    flag('p', paused)
    pause_end = paused and ends or nil
  end
  numbers.keep = keep or numbers.keep
  if has('h') and (history_ or ttl) then forget_older_ends() end
  for name, value in pairs({keep = keep, history = history_, result_ttl = ttl}) do
    call('HSET', META, name, int(value))
  end
  if overdue then call('HSET', META, 'overdue', overdue) end
  read_ends_settings()
  if max(history, results) > 0 then flag('h', true) end
  local changed = set_limits(limits)
  if resumed or changed then wake(now) elseif paused and ends then wake(ends) end
  return finish(has('p') and (pause_end or true), numbers.keep, resumed or changed, history, results,
    call('HGET', META, 'overdue') or '', limits_now())
end)

-- delete: delete this shard of a queue if nothing is in it.
--   really  else it only looks
-- Reply: [now, change, exists, delayed, ready, leased, dead, kept]; the last five are 0 if it was deleted
define('delete', {'allow-oom'}, {'token'}, function(really)
  local delayed, ready, leased, dead, kept, due = sizes()
  local existed = exists
  if exists and really and delayed + ready + leased + dead + kept == 0 then
    call('DEL', META)
    call('UNLINK', ENDED, ENDINGS, LINES, HEADS, TAGS, OLD_TURNS, OLD_SHARES, FORWARDED, RETURNS, CLOSED)
    limited = false
    advance()
    exists = false
    call('HSET', META, 'change', int(change), 'last_token', int(numbers.token))
    expire_keys()
    -- Lanes wait: the next put makes the queue again and wakes one of them.
    if has('l') then call('HSET', META, 'flags', 'l') end
  end
  return finish(existed, delayed - due, ready + due, leased, dead, kept)
end)

-- make: make this shard of a queue if it is not there.
-- Reply: [now, change]
define('make', {'allow-oom'}, {}, function()
  if not exists then make() end
  return finish()
end)
