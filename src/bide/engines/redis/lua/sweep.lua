-- sweep: delete, or count, messages that a rule names, a slice at a time.
-- ARGV 5 which: pending (delayed and ready), due, delayed, dead, acked, expired; or group
--      6 after, 7 before: bounds of due (of the end, for what has ended), or empty
--      8 group, or empty; 9 limit; 10 cursor: of the slice before (of a group), or empty
--      11 count: what the deleted ones are counted as, or empty; 12 delete: 1, else only count
-- Reply: [how many, cursor or null]
local which, group, cursor = ARGV[5], ARGV[8], ARGV[10]
local after, before = tonumber(ARGV[6]) or 0, tonumber(ARGV[7]) or 9007199254740992 / 256 - 1
local limit, delete_them = tonumber(ARGV[9]), ARGV[12] == '1'
if delete_them then forget() end

local function drop(members)
  local ids = {}
  for i, member in ipairs(members) do ids[i] = sub(member, SEQ + 1) end
  if has('g') then
    many('ZREM', GROUPS, R().grouped(ids, each('HMGET', RECORDS, ids)))
  end
  many('HDEL', RECORDS, ids)
  if ARGV[11] ~= '' and #ids > 0 then count(ARGV[11], #ids) end
  gone(members)
end

local found = 0

local function range(set, low, high)
  if found >= limit then return end
  if not delete_them then
    found = found + call('ZCOUNT', set, low, high)
    return
  end
  local members = call('ZRANGEBYSCORE', set, low, high, 'LIMIT', 0, limit - found)
  if #members > 0 then
    many('ZREM', set, members)
    drop(members)
    found = found + #members
  end
end

local function ready()
  -- Weight by weight: within one, rank goes by due.
  local rank = '-inf'
  while true do
    local first = call('ZRANGEBYSCORE', READY, rank, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    if not first then return end
    local weight = floor(tonumber(first) / WEIGHT) * WEIGHT
    range(READY, number(weight + after), '(' .. number(weight + math.min(before, WEIGHT)))
    rank = number(weight + WEIGHT)
  end
end

local next_cursor
if which == 'group' then
  L().spread()
  local prefix = group .. '\1'
  local low = cursor == '' and '[' .. prefix or '(' .. prefix .. cursor
  local members = call('ZRANGEBYLEX', GROUPS, low, '(' .. group .. '\2', 'LIMIT', 0, 300)
  local delayed, chosen = {}, {}
  for _, entry in ipairs(members) do
    if found >= limit then break end
    local member = sub(entry, #prefix + 1)
    local id = sub(member, SEQ + 1)
    local r = R().parse(id, call('HGET', RECORDS, id))
    if not r.aside and r.due >= after and r.due < before and call('HEXISTS', HELD, id) == 0 then
      found = found + 1
      chosen[found] = member
    end
    next_cursor = member
  end
  if delete_them then
    if #chosen > 0 and many('ZREM', DELAYED, chosen) < #chosen then many('ZREM', READY, chosen) end
    drop(chosen)
  end
  if #members < 300 and found < limit then next_cursor = nil end
elseif ENDED[which] then
  local low = ARGV[6] == '' and '-inf' or number(after)
  range(ENDED[which], low, ARGV[7] == '' and '+inf' or '(' .. number(before))
else
  if which == 'due' then before = math.min(before, now + 1) end
  if which == 'delayed' then after = math.max(after, now + 1) else ready() end
  if before > after then range(DELAYED, number(after * 256), '(' .. number(before * 256)) end
end
local reply = cjson.encode({found, next_cursor or null})
if delete_them then return finish(reply) end
return reply
