-- ack: messages are done and leave the queue, or are kept for a while where the queue keeps.
-- ARGV 5 token: of all leases; empty: each has its own
--      from 6 on, no id twice: all ids, and where each has its own, all tokens
-- Reply: [now, 0, [outcome of each]]; [now, 0, []] when all have gone
forget()
local total = ARGV[5] ~= '' and #ARGV - 5 or (#ARGV - 5) / 2
local function token_of(i) return ARGV[5] ~= '' and ARGV[5] or ARGV[5 + total + i] end

local function leave_groups()
  if not has('g') then return end
  local ids = {unpack(ARGV, 6, 5 + total)}
  many('ZREM', GROUPS, R().grouped(ids, call('HMGET', RECORDS, unpack(ids))))
end

-- The usual case: all leases hold, and nothing is to be remembered.
local function at_once()
  local first = call('ZRANGE', LEASED, '0', '0', 'WITHSCORES')[2]
  if not first or tonumber(first) <= now then return false end
  local marks = call('HMGET', HELD, unpack(ARGV, 6, 5 + total))
  local counts, lease, token = {}, nil, nil
  local as_before, since = false, 0  -- what the marks of a lease have in common; the first of it
  for i = 1, total do
    local mark = marks[i]
    if not mark then return false end
    if not as_before or find(mark, as_before, NAME + 1, true) ~= NAME + 1 then
      if lease then counts[lease] = (counts[lease] or 0) + i - since end
      lease, token = string.match(mark, '^((%d+) %d+) ', NAME + 1)
      as_before, since = lease .. ' ', i
      if ARGV[5] ~= '' and token ~= ARGV[5] then return false end
    end
    if ARGV[5] == '' and token ~= ARGV[5 + total + i] then return false end
  end
  counts[lease] = (counts[lease] or 0) + total + 1 - since
  leave_groups()
  call('HDEL', RECORDS, unpack(ARGV, 6, 5 + total))
  call('HDEL', HELD, unpack(ARGV, 6, 5 + total))
  for each_lease, held in pairs(counts) do L().let_go(each_lease, held) end
  count('acked', total)
  gone(marks)
  return true
end

-- A lease that is whole, all of it: of none of its messages anything has to be looked up.
local function whole()
  if ARGV[5] == '' or not has('h') then return false end
  local others, lines, lease = {}, nil, nil
  for _, each_lease in ipairs(L().whole()) do
    local token, moment = string.match(each_lease, '^(%d+) (%d+)$')
    others[#others + 1] = each_lease
    if not lease and token == ARGV[5] and tonumber(moment) > now then
      lines = lines or concat({unpack(ARGV, 6, 5 + total)}, '\n')
      if call('HGET', LEASES, each_lease) == lines then
        lease, others[#others] = each_lease, nil
      end
    end
  end
  if not lease then return false end
  local marks = L().marks_in(lease)
  leave_groups()
  call('HDEL', RECORDS, unpack(ARGV, 6, 5 + total))
  L().no_longer_whole(lease, others)
  L().forget(lease)
  count('acked', total)
  gone(marks)
  return true
end

if exists and keep == 0 and total > 0 then
  if whole() or at_once() then return answer({}) end
  if has('h') then
    L().spread()
    if at_once() then return answer({}) end
  end
end
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
