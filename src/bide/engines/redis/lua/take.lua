-- take: lease the first messages of this shard, for a claim over several shards.
-- ARGV 5 how many to look at; 6 lease: milliseconds; 7 holder; 8 from: ready or delayed
--      9 token: the number of the claim, or empty: this shard gives it; 10 the highest known token
--      11 how many bytes the records may have
-- Reply: [head, ids, records]; head is JSON: [now, token], ids a text of lines. Nothing has tags.
--   Of many the records are left to be fetched.
--   Sent again after it had leased something: JSON [token, until], to be given to `recover`.
local set = ARGV[8] == 'ready' and READY or DELAYED
token = ARGV[9]
forget()

-- Numbers are given by one shard each, and are higher than all that it has met (Lamport's clock).
local function next_token()
  local met = math.max(tonumber(meta[1]), tonumber(ARGV[10]))
  return (floor(met / SHARDS) + 1) * SHARDS + PLACE
end

local members = {}
local stale = token ~= '' and tonumber(call('HGET', META, 'returned') or 0) >= tonumber(token)
if exists and not has('p') and not stale then
  local last = tonumber(ARGV[5]) - 1
  if set == READY then
    members = call('ZRANGE', READY, '0', last)
  else
    members = call('ZRANGEBYSCORE', DELAYED, '-inf', reach, 'LIMIT', '0', last + 1)
  end
end
room = tonumber(ARGV[11])
members = cut(members)
if #members > 0 then lease(set, members, ARGV[7], next_token) end
tell_counts()
if #ids > 0 then
  if tonumber(token) > tonumber(meta[1]) then call('HSET', META, 'token', token) end
  wait_no_more()
  remember_lease()
end
return {'[' .. number(now) .. ',' .. (token ~= '' and token or '0') .. ']', concat(ids, '\n'), texts}
