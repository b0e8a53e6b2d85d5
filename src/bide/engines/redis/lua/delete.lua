-- delete: delete this shard of a queue if nothing is in it.
-- ARGV 8 really: 1, or 0 to only look
-- Reply: [now, change, exists, delayed, ready, leased, dead, kept]; the last five are 0 if it was deleted
define('delete', {'allow-oom'}, function()
  local due = call('ZCOUNT', DELAYED, '-inf', due_by_now())
  local delayed, ready = call('ZCARD', DELAYED), call('ZCARD', READY)
  local leased, dead, kept = call('HLEN', LEASES), call('ZCARD', DEAD), call('ZCARD', KEPT)
  local existed = exists
  if exists and ARGV[8] == '1' and delayed + ready + leased + dead + kept == 0 then
    advance()
    call('DEL', META)
    call('UNLINK', ENDED, ENDINGS, LINES, TURNS, SHARES, FORWARDED)
    limited = false
    -- For a week, clients see that nothing was lost: the number of changes goes on.
    call('HSET', META, 'change', int(change))
    call('EXPIRE', META, 604800)
    if has('l') then  -- lanes wait: the next put makes the queue again and wakes one of them
      call('HSET', META, 'flags', 'l')
      if leader then call('HSET', META, 'leader', int(lead_at) .. ' ' .. leader) end
    end
  end
  return finish(existed, delayed - due, ready + due, leased, dead, kept)
end)
