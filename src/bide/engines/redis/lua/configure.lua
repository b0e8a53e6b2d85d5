-- configure: set what is given.
-- ARGV 8 paused: 0 or 1, or empty; 9 keep: milliseconds, or empty
-- Reply: [now, change, paused, keep, resumed]
define('configure', {}, function()
  make()
  advance()
  local resumed = has('p') and ARGV[8] == '0'
  if ARGV[8] ~= '' then flag('p', ARGV[8] == '1') end
  if ARGV[9] ~= '' then
    keep = tonumber(ARGV[9])
    call('HSET', META, 'keep', ARGV[9])
  end
  if resumed then wake(now) end
  return finish(concat({tostring(has('p')), int(keep), tostring(resumed)}, ','))
end)
