-- Read a run's head, its snapshot and its due time at one moment.
-- KEYS     1 head   2 snapshot   3 due
-- ARGV     1 run id
-- Returns  {OK, head fields …}; {NONE}; {FOREIGN, key}
-- One script, since a head with the next entry's snapshot would be a state that never was.
local bad = foreign({'hash', 'string', 'zset'})
if bad then return {'FOREIGN', bad} end
if redis.call('EXISTS', KEYS[1]) == 0 then return {'NONE'} end
local answer = told(KEYS[1], KEYS[2], KEYS[3])
table.insert(answer, 1, 'OK')
return answer
