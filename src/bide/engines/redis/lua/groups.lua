-- close_group: close a group; if it is closed, until the later of two times.
--   group; keep, for how many milliseconds
-- Reply: [now, change, until when it is closed]
define('close_group', {'allow-oom'}, {}, function(group, keep)
  if not exists then return NO_SHARD end
  advance()
  local until_ = max(closing.closed_until(group) or 0, now + keep)
  call('ZADD', CLOSED, int(until_), group)
  flag('c', true)
  return finish(until_)
end)

-- reopen_group: open a group.
-- Reply: [now, change, until when it was closed, or null]
define('reopen_group', {'allow-oom'}, {}, function(group)
  local until_ = closing.closed_until(group)
  if until_ then
    advance()
    call('ZREM', CLOSED, group)
    if call('EXISTS', CLOSED) == 0 then flag('c', false) end
  end
  return finish(until_ or null)
end)
