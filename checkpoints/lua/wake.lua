-- Make a run due now, if nobody holds it and it is not over.
-- KEYS     1 head   2 due
-- ARGV     1 run id
-- Returns  {OK}, also for a run that is over or unknown; {FOREIGN, key}
local bad = foreign({'hash', 'zset'})
if bad then return {'FOREIGN', bad} end
local h = redis.call('HMGET', KEYS[1], 's', 'l')
local now = clock()
if h[1] and not is_closed(h[1]) and tonumber(h[2]) <= now then due_by(KEYS[2], ARGV[1], now) end
return {'OK'}
