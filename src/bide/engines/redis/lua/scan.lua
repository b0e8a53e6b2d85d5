-- scan: look at messages, a slice at a time.
--   which   see ranges; or returned: what has gone to an earlier set; group; all; or rest: all, but only if
--     some of the returns are remembered no more
--   after, before, group  what all must have in common, or nil
--   limit, left  how many, and how large the reply may become
--   mark, order  place behind which to go on: rank and order; of all: cursor of HSCAN, and hashes of the
--                ids that were returned of its first bucket. 0 and empty at the beginning
--   prefix  how the ids begin, or empty
--   since   of returned and rest: the number of the last change before the scan began
-- Reply: [head, ids, records, leases]; head is [now, change, place or null, ranks]; place is two texts; a rank
--   and behind it the order
define('scan', {'no-writes'}, {}, function(which, after, before, group, limit, room, mark, order, prefix, since)
  if since > change then since = 0 end  -- changes were lost, by a fail-over
  local rank = tonumber(mark)
  local VISITS = 2 * BULK  -- after looking at so many messages, the next slice goes on
  local sifts = prefix ~= '' or group and which ~= 'group'  -- few messages may match
  local READ = sifts and VISITS or limit + SPARE  -- how many members are read at once
  local ids, texts, ranks, visits = {}, {}, {}, 0
  local place = {mark, order}  -- behind which the next slice goes on; nil: nothing is left

  -- Adds a message, which is at a rank and an order, if it is wanted; returns false if there is no room for it.
  local function add(id, text, at, order)
    visits = visits + 1
    if prefix ~= '' and sub(id, 1, #prefix) ~= prefix then return true end
    if after or before or group then
      local r = parse(id, text)
      if r and ((after and r.due < after) or (before and r.due >= before)
        or (group and r.group ~= group)) then return true end
    end
    if #ids >= limit or #ids > 0 and #text + #id > room then return false end
    room = room - #text - #id
    ids[#ids + 1], texts[#texts + 1], ranks[#ranks + 1] = id, text, at .. ' ' .. order
    return true
  end

  -- Adds a member of a set, and sets the place behind it; returns false if there is no room for it.
  local function add_member(member, at)
    local id, order = sub(member, ORDER + 1), sub(member, 1, ORDER)
    local text = call('HGET', RECORDS, id)
    if text and not add(id, text, at, order) then return false end
    place = {at, order}
    return true
  end

  -- Scans one range of a set; returns false if it is not over.
  local function scan_range(set, low, high)
    if rank > high then return true end
    local first = behind(set, max(rank, low), rank >= low and order or '')
    local members = call('ZRANGE', set, first, first + READ - 1, 'WITHSCORES')
    for i = 1, #members, 2 do
      local at = tonumber(members[i + 1])
      if at > high then return true end
      if not add_member(members[i], int(at)) then return false end
    end
    return #members < 2 * READ
  end

  -- Scans all ranges of a state, or of what was returned.
  local function scan_state()
    local low, high
    if which == 'ready' or OF_DELAYED[which] then
      low, high, after, before = after, before, nil, nil  -- the range says it
    elseif which == 'returned' then
      low = since + 1
    end
    for _, range in ipairs(ranges(which, low, high)) do
      if visits >= VISITS or not scan_range(unpack(range)) then return end
    end
    place = nil
  end

  -- Scans the entries of a group.
  local function scan_group()
    local prefix = group .. '\1'
    local low = order == '' and '[' .. prefix or '(' .. prefix .. order .. '\255'
    local entries = call('ZRANGEBYLEX', GROUPS, low, '(' .. group .. '\2', 'LIMIT', 0, READ)
    for _, entry in ipairs(entries) do
      if not add_member(sub(entry, #prefix + 1), '0') then return end
    end
    if #entries < READ then place = nil end
  end

  -- Scans all records by HSCAN. If a page ends within a bucket of the hash, the place names what was
  -- returned of this bucket.
  local function scan_all()
    local cursor, returned = mark, order
    repeat
      local next_cursor, bucket = unpack(call('HSCAN', RECORDS, cursor, 'COUNT', 1))  -- id, record, id ...
      visits = visits + 1
      for i = 1, #bucket, 2 do
        local id, text = bucket[i], bucket[i + 1]
        local hash = sub(redis.sha1hex(id), 1, ORDER)
        if not find(returned, hash, 1, true) then
          if not add(id, text, '0', '0') then
            place = {cursor, returned}
            return
          end
          returned = returned == '' and hash or returned .. '-' .. hash
        end
      end
      cursor, returned = next_cursor, ''
      place = {cursor, ''}
    until cursor == '0' or visits >= VISITS
    if cursor == '0' then place = nil end
  end

  if which == 'rest' and (call('ZCARD', RETURNS) < MAX_RETURNED
      or call('ZCOUNT', RETURNS, '-inf', int(since)) > 0) then place = nil  -- all are remembered
  elseif which == 'all' or which == 'rest' then scan_all()
  elseif which == 'group' then scan_group()
  else scan_state() end
  local leases = #ids > 0 and call('HMGET', LEASES, unpack(ids)) or {}
  return {answer(place or null, ranks), ids, texts, leases}
end)
