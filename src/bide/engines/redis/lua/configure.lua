-- configure: set what is given.
-- ARGV 8 paused: 0 or 1, or empty; 9 keep: milliseconds, or empty; 10 who does it, or empty; 11 how
-- many pauses are remembered; 12 history, 13 result_ttl: milliseconds, or empty
-- Reply: [now, change, paused, keep, resumed, history, result_ttl]

-- Notes that a pause begins or ends: [since, until or null, who or null] of each.
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

define('configure', {}, function()
  make()
  advance()
  local resumed = has('p') and ARGV[8] == '0'
  if ARGV[8] ~= '' then
    local paused = ARGV[8] == '1'
    if paused ~= has('p') then note(paused) end
    flag('p', paused)
  end
  if ARGV[9] ~= '' then
    keep = tonumber(ARGV[9])
    call('HSET', META, 'keep', ARGV[9])
  end
  if ARGV[12] ~= '' then call('HSET', META, 'history', ARGV[12]) end
  if ARGV[13] ~= '' then call('HSET', META, 'result_ttl', ARGV[13]) end
  read_ends_settings()
  if max(history, results) > 0 then flag('h', true) end
  if resumed then wake(now) end
  return finish(concat({tostring(has('p')), int(keep), tostring(resumed), int(history), int(results)}, ','))
end)
