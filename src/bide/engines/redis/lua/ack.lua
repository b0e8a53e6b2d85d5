-- ack: messages are done and leave the queue, or are kept for a while where the queue keeps.
-- ARGV 5 token: of all leases; empty: each has its own
--      from 6 on, no id twice: all ids, and where each has its own, all tokens
-- Reply: [now, 0, [outcome of each]]; [now, 0, []] when all have gone
forget()
local total = ARGV[5] ~= '' and #ARGV - 5 or (#ARGV - 5) / 2
local function token_of(i) return ARGV[5] ~= '' and ARGV[5] or ARGV[5 + total + i] end

-- The usual case: all leases hold, and nothing is to be remembered.
local function at_once()
  local first = call('ZRANGE', LEASED, '0', '0', 'WITHSCORES')[2]
  if not first or tonumber(first) <= now then return false end
  local ids, members = {unpack(ARGV, 6, 5 + total)}, {}
  local held = call('HMGET', HELD, unpack(ids))
  local mine = token_of(1) .. ' '
  for i = 1, total do
    local mark = held[i]
    if ARGV[5] == '' then mine = token_of(i) .. ' ' end
    if not mark or find(mark, mine, SEQ + 1, true) ~= SEQ + 1 then return false end
    members[i] = sub(mark, 1, SEQ) .. ids[i]
  end
  if has('g') then many('ZREM', GROUPS, R().grouped(members, call('HMGET', RECORDS, unpack(ids)))) end
  call('ZREM', LEASED, unpack(members))
  call('HDEL', HELD, unpack(ids))
  call('HDEL', RECORDS, unpack(ids))
  count('acked', total)
  gone(members)
  return true
end

if exists and keep == 0 and total > 0 and at_once() then return answer({}) end
local outcomes, members = {}, {}
for i = 1, total do
  local r = R().locate(ARGV[5 + i])
  if not r or r.token ~= token_of(i) then
    outcomes[i] = R().outcome(r, false)
  else
    R().leave(r)
    count('acked')
    if keep == 0 then
      R().delete(r)
      members[#members + 1] = r.member
      outcomes[i] = '[true]'
    else
      r.attempt = r.attempt + 1
      R().aside(r, 'acked', now)
      R().save(r)
      outcomes[i] = R().outcome(r, true)
    end
  end
end
gone(members)
return answer(outcomes)
