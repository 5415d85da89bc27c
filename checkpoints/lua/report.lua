-- File an orphan report: the last 32 different ones are kept.
-- KEYS     1 reports
-- ARGV     1 body
-- Returns  {OK}; {FOREIGN, key}
-- A report that is there already is a repeat.
local bad = foreign({'list'})
if bad then return {'FOREIGN', bad} end
for _, body in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  if body == ARGV[1] then return {'OK'} end
end
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], -32, -1)
return {'OK'}
