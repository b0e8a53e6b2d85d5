-- decline: a lane was told of something, and nobody waits there any more: tell another one.
-- Reply: nothing
call('ZREM', WAITERS, LANE)
if has('l') and W().leader == LANE then W().elect(W().at) end
return false
