-- Where the messages of a state stand: ranges of the ordered sets, in rank order.

local OF_DELAYED = {delayed = true, due = true, waiting = true}

-- Returns a list of {set, lowest rank, highest rank}.
--   which          ready (as it was promoted), delayed (due or not), of these due or waiting, leased, dead,
--                  acked or expired
--   after, before  bounds of due; of dead, acked and expired messages: of the moment of their end
local function ranges(which, after, before)
  local LAST = 9007199254740992 / 256 - 1
  if which == 'due' then before = min(before or now + 1, now + 1) end
  if which == 'waiting' then after = max(after or 0, now + 1) end
  local low, high = max(after or 0, 0), min(before or LAST, LAST) - 1
  if high < low then return {} end
  if OF_DELAYED[which] then return {{DELAYED, low * 256, high * 256 + 255}} end
  if which == 'leased' then return {{LEASED, low, high}} end
  if ended_in(which) then
    return {{ended_in(which), BASE[which] + min(low, STRIPE), BASE[which] + min(high, STRIPE - 1)}}
  end
  local found, rank = {}, 0
  while true do  -- a stripe for each priority: in it, messages stand by due
    local first = call('ZRANGEBYSCORE', READY, int(rank), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    if not first then return found end
    local stripe = floor(first / STRIPE) * STRIPE
    found[#found + 1] = {READY, stripe + min(low, STRIPE), stripe + min(high, STRIPE - 1)}
    rank = stripe + STRIPE
  end
end

-- Returns the index of the first member of a set behind a rank, and an order of putting there.
local function behind(set, rank, order)
  local low = call('ZCOUNT', set, '-inf', '(' .. int(rank))
  local high = call('ZCOUNT', set, '-inf', int(rank))
  while low < high do
    local middle = floor((low + high) / 2)
    if sub(call('ZRANGE', set, middle, middle)[1], 1, ORDER) > order then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end
