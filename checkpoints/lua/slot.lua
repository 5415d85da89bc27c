-- Take a place in a group whose members are limited, or keep one.
-- KEYS     1 held: member → until when   2 begun: run id → when it began
-- ARGV     1 member   2 run id   3 places (0: any number)   4 beginnings a minute (0: any number)
--          5 term in ms   6 1: the run begins
-- Returns  {OK}; {FULL, ms after which another try may help}; {FOREIGN, key}
-- A place ends by itself, so a worker that died holds none for long. A repeat finds its own place.
local bad = foreign({'zset', 'zset'})
if bad then return {'FOREIGN', bad} end
local now = clock()
local places, rate, term = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local until_ms = redis.call('ZSCORE', KEYS[1], ARGV[1])
local is_held = until_ms and tonumber(until_ms) > now
local begins = ARGV[6] == '1' and rate > 0 and not is_held and not redis.call('ZSCORE', KEYS[2], ARGV[2])
if not is_held and places > 0 and redis.call('ZCOUNT', KEYS[1], '(' .. int(now), '+inf') >= places then
  local first = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return {'FULL', int(tonumber(first[2]) - now)}
end
local minute_ago = '(' .. int(now - 60000)
if begins and redis.call('ZCOUNT', KEYS[2], minute_ago, '+inf') >= rate then
  local first = redis.call('ZRANGEBYSCORE', KEYS[2], minute_ago, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return {'FULL', int(tonumber(first[2]) + 60000 - now)}
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', int(now))
redis.call('ZADD', KEYS[1], int(now + term), ARGV[1])
redis.call('PEXPIRE', KEYS[1], int(math.max(term, redis.call('PTTL', KEYS[1]))))
if begins then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', int(now - 60000))
  redis.call('ZADD', KEYS[2], int(now), ARGV[2])
  redis.call('PEXPIRE', KEYS[2], 60000)
end
return {'OK'}
