-- shards: tell of how many shards a queue is made.
-- ARGV 8 wanted: of how many to make it if it is not there; the first shard decides, the others follow; empty:
--      only look
-- Reply: [now, change, how many or 0, next number of a message here]
define('shards', {}, function()
  local wanted = tonumber(ARGV[8])
  if wanted and not exists then
    SHARDS = wanted
    make()
    advance()
  elseif wanted and SHARD > 0 and SHARDS ~= wanted then  -- left of a queue that was deleted
    SHARDS = wanted
    advance('shards', ARGV[8])
  end
  return finish(exists and SHARDS or 0, seq)
end)
