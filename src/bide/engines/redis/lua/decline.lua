-- include: waking
-- flags: allow-oom
-- decline: a lane was told of something and does not wait there any more: tell another one.
-- Reply: nothing
call('ZREM', WAITERS, LANE)
if has('l') then
  waking()
  if leader == LANE then elect(lead_at) end
end
return false
