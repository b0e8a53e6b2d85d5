-- history: look at how messages with an id have ended.
-- watch: the same; and for a minute, tell the calling lane of every end in this queue.
-- ARGV 8 id
-- Reply: [head, ends or nothing]; head is [now, change, state or null, history, result_ttl]
local WATCHED = 60000

local function look()
  local id, state = ARGV[8], null
  local text = call('HGET', RECORDS, id)
  if text then
    local r = parse(id, text) or {state = 'dead'}
    local lease = call('HGET', LEASES, id)
    local held = lease and sub(lease, 1, ORDER) == r.order
    state = r.state or held and 'leased' or (r.due <= now or call('ZSCORE', READY, r.member)) and 'ready'
      or 'delayed'
  end
  local ends = false
  if has('h') then
    read_ends_settings()
    ends = call('HGET', ENDED, id)
  end
  return {answer(state, history or 0, results or 0), ends}
end

define('history', {'no-writes'}, look)

define('watch', {'allow-oom'}, function()
  if exists and LANE ~= '' then
    local watchers = {LANE .. ' ' .. int(now + WATCHED)}
    for lane, until_ in string.gmatch(call('HGET', META, 'watchers') or '', '(%S+) (%d+)') do
      if lane ~= LANE and tonumber(until_) > now then watchers[#watchers + 1] = lane .. ' ' .. until_ end
    end
    call('HSET', META, 'watchers', concat(watchers, ' '))
  end
  return look()
end)
