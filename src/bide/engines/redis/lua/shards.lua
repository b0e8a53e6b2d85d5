-- shards: tell of how many shards a queue is made.
-- ARGV 8 wanted: of how many to make it if it is not there; empty: only look
-- Reply: [now, change, how many or 0, next number of a message here]
define('shards', {}, function()
  if not exists and ARGV[8] ~= '' then
    SHARDS = tonumber(ARGV[8])
    make()
    advance()
  end
  return finish(exists and SHARDS or 0, seq)
end)
