-- Store a new run with its first entries, most have one; it is due now, or sleeps until somebody comes.
-- KEYS     1 head   2 journal   3 snapshot   4 due   5 runs   6 status index   7 blobs
-- ARGV     1 run id   2 op mark   3 status: ready or sleeping   4 snapshot
--          5 refuse from this share of the server's memory limit on, in thousandths; '': never
--          6.. chain, body for each entry
-- Returns  {OK, now}; {DUP}: this op created it; {EXISTS}: another op did; {FULL, used, limit};
--          {FOREIGN, key}
-- The repeat is told from a clash by the op on entry 1: a lost reply must not look like a taken id.
local bad = foreign({'hash', 'stream', 'string', 'zset', 'zset', 'zset', 'hash'})
if bad then return {'FOREIGN', bad} end
if redis.call('EXISTS', KEYS[1]) == 1 then
  local e = redis.call('XRANGE', KEYS[2], '1-0', '1-0')
  local mark = e[1] and e[1][2][2] or redis.call('HGET', KEYS[1], 'b')
  if mark == ARGV[2] then return {'DUP'} end
  return {'EXISTS'}
end
-- Entries without a head are what is left of a lost or half-deleted run: never built upon.
if redis.call('EXISTS', KEYS[2]) == 1 then return {'FOREIGN', KEYS[2]} end
if ARGV[5] ~= '' then
  -- Here and not by the client, who would look at one moment and write at another.
  local told = redis.pcall('INFO', 'memory')
  local used, limit
  if type(told) == 'string' then
    used, limit = string.match(told, 'used_memory:(%d+)'), string.match(told, '[\r\n]maxmemory:(%d+)')
  end
  if used and limit and limit ~= '0' and tonumber(used) * 1000 > tonumber(limit) * tonumber(ARGV[5]) then
    return {'FULL', used, limit}
  end
end
-- Blobs that came before their run had an end.
if redis.call('EXISTS', KEYS[7]) == 1 then redis.call('PERSIST', KEYS[7]) end
local now = int(clock())
local status, seq = ARGV[3], 0
for at = 6, #ARGV, 2 do
  seq = seq + 1
  redis.call('XADD', KEYS[2], int(seq) .. '-0', 'o', seq == 1 and ARGV[2] or '', 'h', ARGV[at], 'b', ARGV[at + 1])
end
redis.call('HSET', KEYS[1], 'n', int(seq), 'h', ARGV[#ARGV - 1], 's', status, 't', '0', 'k', '', 'w', '',
  'l', '0', 'r', '0', 'm', '0', 'c', now, 'u', now, 'v', '0', 'o', '0', 'p', status)
redis.call('SET', KEYS[3], ARGV[4])
if status == 'ready' then redis.call('ZADD', KEYS[4], now, ARGV[1]) end
redis.call('ZADD', KEYS[5], now, ARGV[1])
file(KEYS[6], ARGV[1], status, now)
if status == 'ready' then wake(KEYS[4], ARGV[1]) end
return {'OK', now}
