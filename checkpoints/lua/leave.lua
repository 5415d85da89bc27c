-- End a run's part in its thread, and make the next one active.
-- KEYS     1 thread (see join.lua)
-- ARGV     1 run id
-- Returns  {OK, active run or ''}; {FOREIGN, key}
-- Next is who came last to interrupt, else who waits longest. A repeat changes nothing more.
local bad = foreign({'hash'})
if bad then return {'FOREIGN', bad} end
redis.call('HDEL', KEYS[1], 'w' .. ARGV[1], 'x' .. ARGV[1])
local active = redis.call('HGET', KEYS[1], 'a')
if active ~= ARGV[1] then return {'OK', active or ''} end
local fields = redis.call('HGETALL', KEYS[1])
local best, rank, number = nil, nil, nil
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 1) == 'w' then
    local at, policy = string.match(fields[i + 1], '^(%d+) (%a+)$')
    at = tonumber(at)
    local order = policy == 'interrupt' and -at or at
    if not best or order < rank then best, rank, number = string.sub(fields[i], 2), order, at end
  end
end
if best then
  redis.call('HSET', KEYS[1], 'a', best, 'b', int(number))
  redis.call('HDEL', KEYS[1], 'w' .. best)
  return {'OK', best}
end
redis.call('HDEL', KEYS[1], 'a', 'b')
-- The number is not needed once nobody is left; a refusal is, until its run is over.
if redis.call('HLEN', KEYS[1]) <= 1 then redis.call('DEL', KEYS[1]) end
return {'OK', ''}
