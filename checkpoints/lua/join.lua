-- Ask for a run's turn in its thread, of which one run at a time is active.
-- KEYS     1 thread (hash): a active run   b its number   n last number   w + run id → number and
--          policy of one that waits   x + run id → the run that it was refused for
-- ARGV     1 run id   2 reject | queue | interrupt   3 most that may wait
-- Returns  {ACTIVE}; {WAITS, active, run ids that it interrupts …}; {BUSY, active}; {FULL, active};
--          {FOREIGN, key}
-- Whoever asks again for the same run gets the same answer, until its turn comes. A refusal is kept
-- too: the starter and a worker that finds the run meanwhile must not be told different things.
local bad = foreign({'hash'})
if bad then return {'FOREIGN', bad} end
local t = redis.call('HMGET', KEYS[1], 'a', 'b', 'w' .. ARGV[1], 'x' .. ARGV[1])
local active, number, mine = t[1], t[2], t[3]
if active == ARGV[1] then return {'ACTIVE'} end
if t[4] then return {'BUSY', t[4]} end
if not active then
  redis.call('HSET', KEYS[1], 'a', ARGV[1], 'b', int(redis.call('HINCRBY', KEYS[1], 'n', 1)))
  redis.call('HDEL', KEYS[1], 'w' .. ARGV[1])
  return {'ACTIVE'}
end
if not mine then
  if ARGV[2] == 'reject' then
    redis.call('HSET', KEYS[1], 'x' .. ARGV[1], active)
    return {'BUSY', active}
  end
  if redis.call('HLEN', KEYS[1]) - 3 >= tonumber(ARGV[3]) then return {'FULL', active} end
  mine = int(redis.call('HINCRBY', KEYS[1], 'n', 1)) .. ' ' .. ARGV[2]
  redis.call('HSET', KEYS[1], 'w' .. ARGV[1], mine)
end
local answer = {'WAITS', active}
local at, policy = string.match(mine, '^(%d+) (%a+)$')
if policy ~= 'interrupt' then return answer end
-- The newest word counts: besides the active run, those that came before to interrupt it.
at = tonumber(at)
if tonumber(number) < at then answer[3] = active end
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local other, how = string.match(fields[i + 1], '^(%d+) (%a+)$')
  if string.sub(fields[i], 1, 1) == 'w' and how == 'interrupt' and tonumber(other) < at then
    answer[#answer + 1] = string.sub(fields[i], 2)
  end
end
return answer
