-- Read the runs of a partition that are due by the server's clock.
-- KEYS     1 due
-- ARGV     1 limit
-- Returns  {OK, run id, due in ms, …}, the longest overdue first; {FOREIGN, key}
local bad = foreign({'zset'})
if bad then return {'FOREIGN', bad} end
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', int(clock()), 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[1]))
table.insert(found, 1, 'OK')
return found
