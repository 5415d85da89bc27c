-- Put one value in the place of a finished run's journal.
-- KEYS     1 head   2 journal   3 folded   4 marks of consumed signals   5 ended runs of the partition
-- ARGV     1 run id   2 seq   3 chain   4 folded journal   5 op mark of entry 1
--          6 expected seq and op mark of the last commit
-- Returns  {OK}; {SAME}: folded already; {NONE}; {OPEN, status}; {CHANGED, seq}; {FOREIGN, key}
-- What was read must be what is there: seq and chain say so for all entries at once.
-- The expiry of the head, if it has one, is that of the whole run. The two marks stay, so that a
-- repeat of the first and of the last call is still known.
local bad = foreign({'hash', 'stream', 'string', 'list', 'zset'})
if bad then return {'FOREIGN', bad} end
local h = redis.call('HMGET', KEYS[1], 's', 'n', 'h')
if not h[1] then return {'NONE'} end
if not is_closed(h[1]) then return {'OPEN', h[1]} end
if h[2] ~= ARGV[2] or h[3] ~= ARGV[3] then return {'CHANGED', h[2]} end
local is_folded = redis.call('EXISTS', KEYS[3]) == 1

local left = redis.call('PTTL', KEYS[1])
if not is_folded then
  redis.call('SET', KEYS[3], ARGV[4])
  if left >= 0 then redis.call('PEXPIRE', KEYS[3], left) end
  redis.call('DEL', KEYS[2], KEYS[4])
  redis.call('HSET', KEYS[1], 'b', ARGV[5], 'z', ARGV[6])
end
if left >= 0 then
  redis.call('ZADD', KEYS[5], int(clock() + left), ARGV[1])
else
  redis.call('ZREM', KEYS[5], ARGV[1])
end
return {is_folded and 'SAME' or 'OK'}
