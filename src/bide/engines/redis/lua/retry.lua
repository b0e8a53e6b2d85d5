-- retry: give messages back, to be handed out again; without attempts left they are dead letters.
-- ARGV 5 delay; 6 release: 1 to count no attempt; 7 reason; from 8 on, two for each: id, token
-- Reply: [now, 0, [outcome of each]]
forget()
local due, release, reason = now + ARGV[5], ARGV[6] == '1', ARGV[7]
local outcomes = {}
local earliest
for i = 8, #ARGV, 2 do
  local r = R().locate(ARGV[i])
  local done = r ~= nil and r.token == ARGV[i + 1]
  if done then
    if release and due == now then
      R().to_ready(r)
    elseif release or R().failed(r, r.holder, reason, now) then
      if not release then count('retried') end
      -- The moment from which on it is too late stays where it is.
      if r.expires then r.expires = r.expires - (due - r.due) end
      r.due = due
      R().to_delayed(r)
      R().save(r)
    end
    R().let_go(r)
    if not r.aside and (not earliest or r.due < earliest) then earliest = r.due end
  end
  outcomes[#outcomes + 1] = R().outcome(r, done)
end
wake(earliest)
return answer(outcomes)
