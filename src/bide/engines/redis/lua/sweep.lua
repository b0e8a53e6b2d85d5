-- include: records ranges
-- flags: allow-oom
-- sweep: delete, or count, messages that a rule names, a slice at a time.
-- ARGV 9 which: pending (delayed and ready), due, delayed, dead, acked, expired; or group
--     10 after, 11 before: bounds of due (of the end, for what has ended), or empty
--     12 group, or empty; 13 limit; 14 cursor: of the slice before (of a group), or empty
--     15 count: what the deleted ones are counted as, or empty; 16 delete: 1, else only count
-- Reply: [how many, cursor or null]
local which, group, cursor = ARGV[9], ARGV[12], ARGV[14]
local after, before = tonumber(ARGV[10]), tonumber(ARGV[11])
local limit, deletes = tonumber(ARGV[13]), ARGV[16] == '1'
local found = 0

local function drop(members)
  local ids = {}
  for i, member in ipairs(members) do ids[i] = sub(member, ORDER + 1) end
  delete_records(ids)
  if ARGV[15] ~= '' then count(ARGV[15], #ids) end
end

local function sweep(which, after, before)
  for _, range in ipairs(ranges(which, after, before)) do
    local set, low, high = range[1], int(range[2]), int(range[3])
    if not deletes then
      found = found + call('ZCOUNT', set, low, high)
    elseif found < limit then
      local members = call('ZRANGEBYSCORE', set, low, high, 'LIMIT', 0, limit - found)
      if #members > 0 then
        drop(members)
        call('ZREM', set, unpack(members))
        found = found + #members
      end
    end
  end
end

local following
if which == 'group' then
  local prefix = group .. '\1'
  local low = cursor == '' and '[' .. prefix or '(' .. prefix .. cursor
  local entries = call('ZRANGEBYLEX', GROUPS, low, '(' .. group .. '\2', 'LIMIT', 0, 300)
  local chosen = {}
  for _, entry in ipairs(entries) do
    if found >= limit then break end
    local member = sub(entry, #prefix + 1)
    local id = sub(member, ORDER + 1)
    local text = call('HGET', RECORDS, id)
    local r = text and parse(id, text)
    if r and not r.state and (not after or r.due >= after) and (not before or r.due < before)
      and call('HEXISTS', LEASES, id) == 0 then
      found = found + 1
      chosen[found] = member
    end
    following = member
  end
  if deletes and #chosen > 0 then
    drop(chosen)
    if call('ZREM', DELAYED, unpack(chosen)) < #chosen then call('ZREM', READY, unpack(chosen)) end
  end
  if #entries < 300 and found < limit then following = nil end
elseif which == 'pending' then
  sweep('ready', after, before)
  sweep('delayed', after, before)
elseif which == 'due' then
  sweep('ready', after, before)
  sweep('delayed', after, min(before or now + 1, now + 1))
elseif which == 'delayed' then
  sweep('delayed', max(after or 0, now + 1), before)
else
  sweep(which, after, before)
end
local reply = cjson.encode({found, following or null})
if deletes then return finish(reply) end
return reply
