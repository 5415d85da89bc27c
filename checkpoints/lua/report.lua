-- File an orphan report: the last 32 different ones are kept.
-- KEYS     1 reports   2 head
-- ARGV     1 body
-- Returns  {OK}; {FOREIGN, key}
-- A report that is there already is a repeat.
local bad = foreign({'list', 'hash'})
if bad then return {'FOREIGN', bad} end
for _, body in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  if body == ARGV[1] then return {'OK'} end
end
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], -32, -1)
-- Evidence about a run that is gone or will be goes too.
local left = redis.call('PTTL', KEYS[2])
if left == -2 then left = 86400000 end
if left >= 0 then redis.call('PEXPIRE', KEYS[1], left) end
return {'OK'}
