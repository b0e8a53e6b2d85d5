-- ack: messages are done and leave the queue, or are kept for a while where the queue keeps.
-- ARGV from 5 on, two for each lease: id, token; no id twice
-- Reply: [now, 0, [outcome of each]]; [now, 0, []] when all have gone
forget()
local ids = {}
for i = 5, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
local helds = exists and each('HMGET', HELD, ids) or {}
local first = call('ZRANGE', LEASED, 0, 0, 'WITHSCORES')[2]
local keep = tonumber(meta[KEEP] or 0)
local members = {}
local plain = keep == 0 and first and tonumber(first) > now
for i, id in ipairs(ids) do
  local held = helds[i]
  local token = ARGV[4 + i * 2] .. ' '
  if not (plain and held and string.sub(held, SEQ + 1, SEQ + #token) == token) then
    plain = false
    break
  end
  members[i] = string.sub(held, 1, SEQ) .. id
end
if plain then
  if meta[GROUPED] then
    for i, text in ipairs(each('HMGET', RECORDS, ids)) do
      local r = R().parse(ids[i], text)
      if r.group ~= '' then call('ZREM', GROUPS, r.group .. '\1' .. r.member) end
    end
  end
  many('ZREM', LEASED, members)
  many('HDEL', HELD, ids)
  many('HDEL', RECORDS, ids)
  count('acked', #ids)
  tidy(#ids)
  return answer({})
end
local outcomes = {}
for i, id in ipairs(ids) do
  local r = R().locate(id)
  if not r or r.token ~= ARGV[4 + i * 2] then
    outcomes[i] = R().outcome(r, false)
  else
    R().leave(r)
    count('acked')
    if keep == 0 then
      R().delete(r)
      outcomes[i] = '[true]'
    else
      r.attempt = r.attempt + 1
      R().aside(r, 'acked', now)
      R().save(r)
      outcomes[i] = R().outcome(r, true)
    end
  end
end
tidy(#ids)
return answer(outcomes)
