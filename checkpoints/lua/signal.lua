-- Put a signal in a run's mailbox, and make the run due now if nobody holds it.
-- KEYS     1 head   2 mailbox   3 marks of consumed signals   4 due
-- ARGV     1 run id   2 signal id   3 mark of this call   4 body
-- Returns  {OK}; {PENDING}: another call put it there; {NONE}; {CLOSED, status}; {FOREIGN, key}
-- The call's mark is looked for first, in the mailbox and among the consumed: a lost reply must give
-- neither a second signal nor 'closed' when the run has read the first and ended.
local bad = foreign({'hash', 'hash', 'list', 'zset'})
if bad then return {'FOREIGN', bad} end
local h = redis.call('HMGET', KEYS[1], 's', 'l')
if not h[1] then return {'NONE'} end
local item = redis.call('HGET', KEYS[2], ARGV[2])
if item and string.match(item, '^%d+ %d+ (%w+) ') == ARGV[3] then return {'OK'} end
for _, mark in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
  if mark == ARGV[3] then return {'OK'} end
end
if is_closed(h[1]) then return {'CLOSED', h[1]} end
if item then return {'PENDING'} end
local now = clock()
local number = redis.call('HINCRBY', KEYS[1], 'm', 1)
redis.call('HSET', KEYS[2], ARGV[2], int(number) .. ' ' .. int(now) .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
-- A held run needs no waking: its holder meets the mail count in its next renewal or commit.
if tonumber(h[2]) <= now then due_by(KEYS[4], ARGV[1], now) end
return {'OK'}
