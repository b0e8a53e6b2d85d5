-- audit: check the places of messages, a slice at a time: each has a record that agrees with where it
-- stands, and stands nowhere else. Adds up their bytes.
-- ARGV 8 set: its number, from 1 on; 6: ends; 9 offset in it
-- Reply: [now, change, strays, set or null, offset, bytes]
local bytes

local function is_sound(sets, set, member)
  local id = sub(member, ORDER + 1)
  local text = call('HGET', RECORDS, id)
  if not text then return false end
  bytes = bytes + #id + #text
  local r = parse(id, text)
  local lease = call('HGET', LEASES, id)
  local held = lease ~= false
  if held then bytes = bytes + #(match(lease, '\n(.*)') or '') end
  if not r or r.member ~= member or held ~= (set == 3) or ended_in(r.state) ~= (set > 3 and sets[set] or nil) then
    return false
  end
  for other, key in ipairs(sets) do
    if other ~= set and call('ZSCORE', key, member) then return false end
  end
  if limited and set < 4 and set > 1 and not is_in_line(r, held) then return false end
  return r.group == '' or call('ZSCORE', GROUPS, r.group .. '\1' .. member) ~= false
end

-- Adds up the bytes of what is remembered of ended messages, of up to 200 ids from an offset on.
local function weigh_ends(offset)
  local ids = call('ZRANGE', ENDINGS, offset, offset + 199)
  for _, id in ipairs(ids) do bytes = bytes + #id + call('HSTRLEN', ENDED, id) end
  return #ids
end

define('audit', {'no-writes'}, function()
  local sets = {DELAYED, READY, LEASED, DEAD, KEPT}
  local set, offset, strays, left = tonumber(ARGV[8]), tonumber(ARGV[9]), 0, 200
  bytes = 0
  if set == 6 then
    local n = weigh_ends(offset)
    return answer(0, n == 200 and 6 or null, offset + n, bytes)
  end
  while sets[set] and left > 0 do
    local members = call('ZRANGE', sets[set], offset, offset + left - 1)
    for _, member in ipairs(members) do
      if not is_sound(sets, set, member) then strays = strays + 1 end
    end
    if #members < left then set, offset = set + 1, 0 else offset = offset + #members end
    left = left - #members
  end
  return answer(strays, sets[set] and set or has('h') and 6 or null, offset, bytes)
end)
