-- Rows of outboxes: this shard remembers those whose commands it has executed, in FORWARDED.
local rows  -- of the call at hand, the member of each message; nil: it is not from an outbox

-- Reads the origin of a call: "outbox before row row ...", or empty; `before` may be empty. First forgets
-- the rows of the outbox that are smaller than `before`.
local function read_origin(text)
  rows = nil
  if text == '' then return end
  local outbox, before, names = match(text, '^(%S+) (%S*) (.*)$')
  if before ~= '' then
    call('ZREMRANGEBYLEX', FORWARDED, '[' .. outbox .. '/', '(' .. outbox .. '/' .. before)
  end
  rows = {}
  for name in string.gmatch(names, '%S+') do rows[#rows + 1] = outbox .. '/' .. name end
end

local function is_forwarded(i)
  return call('ZSCORE', FORWARDED, rows[i])
end

-- Remembers rows, whose numbers in the call are the keys of `done`.
local function remember_rows(done)
  if not rows then return end
  for i in pairs(done) do call('ZADD', FORWARDED, 0, rows[i]) end
  local most = 10000  -- of bide.model.limits
  call('ZREMRANGEBYRANK', FORWARDED, 0, -most - 1)
end

