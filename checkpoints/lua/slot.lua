-- Take a place in a group whose members are limited, or keep one.
-- KEYS     1 held: member → until when   2 begun: member → when its run began
-- ARGV     1 member: run id ':' owner   2 run id   3 places (0: any number)
--          4 beginnings a minute (0: any number)   5 term in ms   6 1: the run begins
-- Returns  {OK}; {FULL, ms after which another try may help}; {FOREIGN, key}
-- A place ends by itself, so a worker that died holds none for long. A repeat finds its own place.
-- Members are counted by run: who takes a run over need not wait for the place of the owner that died,
-- and takes nothing from one that only seemed dead. Older versions put bare run ids into begun.
local bad = foreign({'zset', 'zset'})
if bad then return {'FOREIGN', bad} end
local now = clock()
local places, rate, term = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local minute_ago = now - 60000

local function has_member(key, after)
  local score = redis.call('ZSCORE', key, ARGV[1])
  return score and tonumber(score) > after
end

-- The lowest score above `after` if the run is not in there and as many others are as may be.
local function full(key, after, most)
  local above = '(' .. int(after)
  if most == 0 or redis.call('ZCOUNT', key, above, '+inf') < most then return nil end
  local runs, seen = 0, {}
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, above, '+inf')) do
    local run = string.match(member, '^[^:]*')
    if run == ARGV[2] then return nil end
    if not seen[run] then seen[run], runs = true, runs + 1 end
  end
  if runs < most then return nil end
  return tonumber(redis.call('ZRANGEBYSCORE', key, above, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
end

local ends = not has_member(KEYS[1], now) and full(KEYS[1], now, places)
if ends then return {'FULL', int(ends - now)} end
local begins = ARGV[6] == '1' and rate > 0 and not has_member(KEYS[2], minute_ago)
local first = begins and full(KEYS[2], minute_ago, rate)
if first then return {'FULL', int(first - minute_ago)} end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', int(now))
redis.call('ZADD', KEYS[1], int(now + term), ARGV[1])
redis.call('PEXPIRE', KEYS[1], int(math.max(term, redis.call('PTTL', KEYS[1]))))
if begins then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', int(minute_ago))
  redis.call('ZADD', KEYS[2], int(now), ARGV[1])
  redis.call('PEXPIRE', KEYS[2], 60000)
end
return {'OK'}
