-- decline: a lane was told of something, and nobody waits there any more: tell another one.
-- Reply: nothing
call('ZREM', WAITERS, LANE)
if meta[LEADER] == LANE then
  local at = tonumber(meta[LEAD_AT])
  W().elect(at)
end
return false
