-- Read what a worker should look at in a partition, and when there will be more.
-- KEYS     1 due
-- ARGV     1 limit
-- Returns  {OK, now, when the next run becomes due or '', run id, due in ms, …}; {FOREIGN, key}
-- Both ends of the index: the longest overdue first, then those that came due last. A lease that has
-- just run out stands at the far end, and must not wait until the backlog before it is worked off.
local bad = foreign({'zset'})
if bad then return {'FOREIGN', bad} end
local now, limit = int(clock()), tonumber(ARGV[1])
local answer = {'OK', now}
answer[3] = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or ''
local oldest = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
for _, item in ipairs(oldest) do answer[#answer + 1] = item end
if #oldest == 2 * limit then
  local newest = redis.call('ZREVRANGEBYSCORE', KEYS[1], now, '-inf', 'WITHSCORES', 'LIMIT', 0, limit)
  for _, item in ipairs(newest) do answer[#answer + 1] = item end
end
return answer
