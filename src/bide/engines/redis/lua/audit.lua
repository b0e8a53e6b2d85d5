-- audit: check the places of messages, a slice at a time: each has a record that agrees with where
-- it stands, and stands nowhere else.
-- ARGV 5 set: its number, from 1 on; 6 offset in it
-- Reply: JSON [strays, set or null, offset]
local sets = {DELAYED, READY, LEASED, ENDED.dead, ENDED.acked, ENDED.expired}
local states = {[4] = 'dead', [5] = 'acked', [6] = 'expired'}
local set, offset = tonumber(ARGV[5]), tonumber(ARGV[6])
local strays, left = 0, 200

-- A member of a set, or of what is held the name of its chunk, says where it stands.
local function check(id, member, name)
  local text = call('HGET', RECORDS, id)
  local r = text and R().parse(id, text)
  local is_held = call('HEXISTS', HELD, id) == 1 or L().mark_in_whole(id) ~= false
  local fine = r and r.aside == states[set] and is_held == (set == 3)
    and (r.member == member or sub(r.seq, 1, NAME) == name)
  member = member or r and r.member or ''
  for other, key in ipairs(sets) do
    if other ~= set and call('ZSCORE', key, member) then fine = false end
  end
  if r and r.group ~= '' and not call('ZSCORE', GROUPS, r.group .. '\1' .. member) then
    fine = false
  end
  if not fine then strays = strays + 1 end
  left = left - 1
end

-- Leases are told one by one, and an offset also says how far into the text of one: where the line
-- of the next id begins.
local LEASE = 2 ^ 30

local function check_leases()
  while left > 0 do
    local place, at = floor(offset / LEASE), offset % LEASE + 1
    local lease = call('ZRANGE', LEASED, place, place)[1]
    if not lease then return true end
    local lines = call('HGET', LEASES, lease) or ''
    local ids = {}
    while at <= #lines and #ids < math.max(left, 100) do
      local last = find(lines, '\n', at, true) or #lines + 1
      ids[#ids + 1] = sub(lines, at, last - 1)
      at = last + 1
    end
    local held, marks = L().held_by(lease, ids)
    for i, id in ipairs(held) do check(id, nil, sub(marks[i], 1, NAME)) end
    left = left - 1 - floor(#ids / 8)
    if at <= #lines then
      offset = place * LEASE + at - 1
    else
      local whole = offset % LEASE == 0
      if whole and #held ~= tonumber(call('HGET', LEASES, lease .. ' left')) then
        strays = strays + 1
      end
      offset = (place + 1) * LEASE
    end
  end
  return false
end

while sets[set] and left > 0 do
  local ended
  if set == 3 then
    ended = check_leases()
  else
    local members = call('ZRANGE', sets[set], offset, offset + left - 1)
    ended = #members < left
    for _, member in ipairs(members) do check(sub(member, SEQ + 1), member) end
    offset = offset + #members
  end
  if ended then set, offset = set + 1, 0 end
end
return '[' .. strays .. ',' .. (sets[set] and set or 'null') .. ',' .. number(offset) .. ']'
