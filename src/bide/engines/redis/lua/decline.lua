-- decline: a lane was told of something and does not wait there any more: tell another one.
-- Reply: nothing
define('decline', {'allow-oom'}, function()
  call('ZREM', WAITERS, LANE)
  if leader == LANE and has('l') then elect(lead_at) end
  return false
end)
