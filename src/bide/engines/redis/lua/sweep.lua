-- sweep: delete, or count, messages that a rule names, a slice at a time.
-- ARGV 8 which, one or several: see ranges; or group
--     9 after, 10 before: bounds of due (of the end, for what has ended), or empty
--     11 group, or empty; 12 limit; 13 cursor: of the slice before (of a group), or empty
--     14 count: what the deleted ones are counted as, or empty; 15 delete: 1, else only count
--     16 actor: who gives the command, or empty
-- Reply: [now, change, how many, cursor or null]
define('sweep', {'allow-oom'}, function()
  local which, group, cursor = ARGV[8], ARGV[11], ARGV[13]
  local after, before = tonumber(ARGV[9]), tonumber(ARGV[10])
  local limit, deletes = tonumber(ARGV[12]), ARGV[15] == '1'
  local found, counted = 0, ARGV[14] ~= '' and ARGV[14] or nil
  actor = ARGV[16] ~= '' and ARGV[16] or nil
  if deletes then advance() end

  local function delete_all(members)
    drop(ids_of(members), counted)
    if counted then count(counted, #members) end
  end

  local function sweep(which)
    for _, range in ipairs(ranges(which, after, before)) do
      local set, low, high = range[1], int(range[2]), int(range[3])
      if not deletes then
        found = found + call('ZCOUNT', set, low, high)
      elseif found < limit then
        local members = call('ZRANGEBYSCORE', set, low, high, 'LIMIT', 0, limit - found)
        if #members > 0 then
          delete_all(members)
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
      delete_all(chosen)
      if call('ZREM', DELAYED, unpack(chosen)) < #chosen then call('ZREM', READY, unpack(chosen)) end
    end
    if #entries < 300 and found < limit then following = nil end
  else
    for each in string.gmatch(which, '%a+') do sweep(each) end
  end
  return (deletes and finish or answer)(found, following or null)
end)
