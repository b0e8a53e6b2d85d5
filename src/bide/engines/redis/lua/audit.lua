-- audit: check the places of messages, a slice at a time: each has a record that agrees with where
-- it stands, and stands nowhere else.
-- ARGV 5 set: its number, from 1 on; 6 offset in it
-- Reply: JSON [strays, set or null, offset]
local sets = {DELAYED, READY, LEASED, ENDED.dead, ENDED.acked, ENDED.expired}
local states = {[4] = 'dead', [5] = 'acked', [6] = 'expired'}
local set, offset = tonumber(ARGV[5]), tonumber(ARGV[6])
local strays, left = 0, 300
while sets[set] and left > 0 do
  local members = call('ZRANGE', sets[set], offset, offset + left - 1)
  for _, member in ipairs(members) do
    local id = sub(member, SEQ + 1)
    local text = call('HGET', RECORDS, id)
    local r = text and R().parse(id, text)
    local fine = r and r.member == member and r.aside == states[set]
      and (call('HEXISTS', HELD, id) == 1) == (set == 3)
    for other, key in ipairs(sets) do
      if other ~= set and call('ZSCORE', key, member) then fine = false end
    end
    if r and r.group ~= '' and not call('ZSCORE', GROUPS, r.group .. '\1' .. member) then
      fine = false
    end
    if not fine then strays = strays + 1 end
  end
  left = left - #members
  offset = offset + #members
  if left > 0 then set, offset = set + 1, 0 end
end
return cjson.encode({strays, sets[set] and set or null, offset})
