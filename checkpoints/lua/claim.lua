-- Take a run's lease, if nobody holds it.
-- KEYS     1 head   2 snapshot   3 due   4 status index
-- ARGV     1 run id   2 owner   3 nonce   4 term in ms
-- Returns  {OK, now, 1 if taken from a dead owner, head fields …}; {NONE}; {CLOSED, status};
--          {BUSY, owner, lease end}; {FOREIGN, key}
-- The stored nonce comes before 'busy': a claim whose reply was lost must not be shut out by itself.
-- The token outlives the lease (no expiry on any key), else an old writer could meet its number again.
local bad = foreign({'hash', 'string', 'zset', 'zset'})
if bad then return {'FOREIGN', bad} end
local h = redis.call('HMGET', KEYS[1], 's', 'k', 'w', 'l', 'c', 'o', 'm', 'p')
if not h[1] then return {'NONE'} end
if is_closed(h[1]) then return {'CLOSED', h[1]} end
local now = clock()
local lease = tonumber(h[4])
local is_repeat = lease > 0 and h[2] == ARGV[3]
if lease > now and not is_repeat then return {'BUSY', h[3], h[4]} end

local ends = int(now + tonumber(ARGV[4]))
local takeover = h[6]
if is_repeat then
  redis.call('HSET', KEYS[1], 'l', ends)
else
  takeover = lease > 0 and '1' or '0'
  local before = h[1]
  if before == 'running' then before = h[8] end
  redis.call('HINCRBY', KEYS[1], 't', 1)
  redis.call('HSET', KEYS[1], 'k', ARGV[3], 'w', ARGV[2], 'l', ends, 's', 'running', 'u', int(now),
    'v', h[7], 'o', takeover, 'p', before)
  if takeover == '1' then redis.call('HINCRBY', KEYS[1], 'r', 1) end
  if h[1] ~= 'running' then file(KEYS[4], ARGV[1], 'running', h[5]) end
end
redis.call('ZADD', KEYS[3], ends, ARGV[1])
local answer = told(KEYS[1], KEYS[2], KEYS[3])
table.insert(answer, 1, takeover)
table.insert(answer, 1, int(now))
table.insert(answer, 1, 'OK')
return answer
