-- Give a lease back without a commit.
-- KEYS     1 head   2 due   3 status index
-- ARGV     1 run id   2 token   3 nonce   4 due in ms, or ''   5 status; '': as before the claim
-- Returns  {OK}; {LOST}: not held, nothing changed; {FOREIGN, key}
-- Mail that came after the claim makes the run due now: its sender saw a held run and woke nobody.
local bad = foreign({'hash', 'zset', 'zset'})
if bad then return {'FOREIGN', bad} end
local h = redis.call('HMGET', KEYS[1], 't', 'k', 'l', 's', 'p', 'c', 'm', 'v')
if h[1] ~= ARGV[2] or h[2] ~= ARGV[3] or h[3] == '0' then return {'LOST'} end
local now = clock()
local due = ARGV[4]
if tonumber(h[7]) > tonumber(h[8]) and (due == '' or tonumber(due) > now) then due = int(now) end
local status = ARGV[5]
if status == '' then status = h[4] == 'running' and h[5] or h[4] end
redis.call('HSET', KEYS[1], 'l', '0', 's', status, 'u', int(now))
if status ~= h[4] then file(KEYS[3], ARGV[1], status, h[6]) end
if due == '' then redis.call('ZREM', KEYS[2], ARGV[1]) else redis.call('ZADD', KEYS[2], due, ARGV[1]) end
if due ~= '' and tonumber(due) <= now then wake(KEYS[2], ARGV[1]) end
return {'OK'}
