-- edit: change what is named of messages that nobody holds, dead letters included.
-- ARGV 8 still: what the caller saw (see is_still), or empty; 9 due: a moment, or + and milliseconds from
--      now; empty: it stays, and only then dead letters are changed; 10 flags, as of put
--      Of the next ones, empty: it stays. 11 body, behind its kind; 12 priority; 13 attempts; 14 expires, or
--      -; 15 group and 16 headers, behind a =, and nothing behind it: without; from 17 on, two for each:
--      id, and empty
-- Reply: [now, change, [outcome of each], []]
local function edit(r, moment)
  local still, body, expires, group, headers = ARGV[8], ARGV[11], ARGV[14], ARGV[15], ARGV[16]
  if not r or r.token or r.state and (r.state ~= 'dead' or moment) then return false end
  if r.state and find(r.failures, '"in transit by bide [^"]*"[^"]*%]%]$') then
    return false  -- a move or import has it under way: the change would be lost
  end
  if still ~= '' and not is_still(r, still) then return false end
  local is_ready = not r.state and not moment and not call('ZSCORE', DELAYED, r.member)
  if moment then plan(r, moment) end
  if body ~= '' then r.kind, r.body = sub(body, 1, 1), sub(body, 2) end
  if ARGV[12] ~= '' then r.priority = tonumber(ARGV[12]) end
  if ARGV[13] ~= '' then r.attempts = tonumber(ARGV[13]) end
  if expires == '-' then
    r.expires = nil
  elseif expires ~= '' then  -- a retry keeps the time at which it expires
    r.expires = expires - (r.due - (r.planned or r.due))
  end
  if group ~= '' then set_group(r, sub(group, 2)) end
  if headers ~= '' then r.headers = sub(headers, 2) end
  if r.state then
    save(r)
  elseif is_ready then
    to_ready(r)
  else
    to_delayed(r)
  end
  return true
end

define('edit', {}, function()
  local when, outcomes, earliest = ARGV[9], {}, nil
  local moment = when ~= '' and (sub(when, 1, 1) == '+' and now + when or tonumber(when))
  advance()
  for i = 17, #ARGV, 2 do
    local r = locate(ARGV[i])
    local done = edit(r, moment)
    if done then
      for letter in string.gmatch(ARGV[10], '%a') do flag(letter, true) end
      if not r.state then earliest = min(earliest or r.due, r.due) end
    end
    outcomes[#outcomes + 1] = outcome(r, done)
  end
  wake(earliest and max(earliest, now))
  return finish('[' .. concat(outcomes, ',') .. '],[]')
end)
