-- Record the first decision on a request, and tell the run.
-- KEYS     1 head   2 asks   3 mailbox   4 due   5 open asks   6 ruled asks of the partition
-- ARGV     1 run id   2 ask id   3 decision id   4 verb   5 by   6 digest   7 body
--          8 1: refuse before the unlock time   9 mark of this call
-- Returns  {OK | REPEAT | DECIDED, at, verb, by}; {NONE}; {CLOSED, status}; {MISSING, open ids …};
--          {EXPIRED, ms}; {STALE, digest}; {LOCKED, unlock ms, now}; {FOREIGN, key}
-- The repeat comes first: a click whose answer was lost gets the same answer, even after the run's end.
-- Then what no second look would change, who was first before that the run is over (decided, closed,
-- missing, expired), then what it would.
local bad = foreign({'hash', 'hash', 'hash', 'zset', 'zset', 'zset'})
if bad then return {'FOREIGN', bad} end
local h = redis.call('HMGET', KEYS[1], 's', 'l')
if not h[1] then return {'NONE'} end
local ruling = redis.call('HGET', KEYS[2], 'r' .. ARGV[2])
local answer
if ruling then
  local at, a, b, rest = string.match(ruling, '^(%d+) (%d+) (%d+) ()')
  a, b = tonumber(a), tonumber(b)
  local id = string.sub(ruling, rest, rest + a - 1)
  answer = {'DECIDED', at, string.sub(ruling, rest + a, rest + a + b - 1), string.sub(ruling, rest + a + b)}
  if id == ARGV[3] then
    answer[1] = 'REPEAT'
    return answer
  end
end
if answer then return answer end
if is_closed(h[1]) then return {'CLOSED', h[1]} end
local ask = redis.call('HGET', KEYS[2], 'q' .. ARGV[2])
if not ask then
  local open = {'MISSING'}
  for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
    local id = string.sub(field, 2)
    if #open <= 20 and string.sub(field, 1, 1) == 'q' and redis.call('HEXISTS', KEYS[2], 'r' .. id) == 0 then
      open[#open + 1] = id
    end
  end
  return open
end
local expires, unlock, digest = string.match(ask, '^%d+ (%d+) (%d+) (%S*) ')
local now = clock()
if expires ~= '0' and now >= tonumber(expires) then return {'EXPIRED', expires} end
if digest ~= ARGV[6] then return {'STALE', digest} end
if ARGV[8] == '1' and now < tonumber(unlock) then return {'LOCKED', unlock, int(now)} end
redis.call('HSET', KEYS[2], 'r' .. ARGV[2],
  int(now) .. ' ' .. #ARGV[3] .. ' ' .. #ARGV[4] .. ' ' .. ARGV[3] .. ARGV[4] .. ARGV[5])
local number = redis.call('HINCRBY', KEYS[1], 'm', 1)
redis.call('HSET', KEYS[3], 'decision:' .. ARGV[2],
  int(number) .. ' ' .. int(now) .. ' ' .. ARGV[9] .. ' ' .. ARGV[7])
redis.call('ZREM', KEYS[5], ARGV[1] .. ':' .. ARGV[2])
redis.call('ZADD', KEYS[6], int(now), ARGV[1] .. ':' .. ARGV[2])
redis.call('ZREMRANGEBYRANK', KEYS[6], 0, -1001)
if tonumber(h[2]) <= now then due_by(KEYS[4], ARGV[1], now) end
return {'OK', int(now), ARGV[4], ARGV[5]}
