-- Record the first decision on a request, or one of the votes it needs, and tell the run.
-- KEYS     1 head   2 asks   3 mailbox   4 due   5 open asks   6 ruled asks of the partition
-- ARGV     1 run id   2 ask id   3 decision id   4 verb   5 by   6 digest   7 body
--          8 1: refuse before the unlock time   9 mark of this call   10 voter
--          11 1: decides whatever the quorum   12 1: the expiry, which needs the deadline passed
-- Returns  {OK | REPEAT | DECIDED, at, verb, by}; {VOTED | REVOTED | SAME, at, verb, by, missing};
--          {NONE}; {CLOSED, status}; {MISSING, open ids …}; {EXPIRED | EARLY, ms}; {STALE, digest};
--          {LOCKED, unlock ms, now}; {FOREIGN, key}
-- The repeat comes first: a click whose answer was lost gets the same answer, even after the run's end.
-- Then what no second look would change, who was first before that the run is over (decided, closed,
-- missing, expired), then what it would.
-- The expiry is a decision like any other, and its deadline is judged here: whatever comes later is
-- told 'expired', before the expiry is on record and after, so no two callers see two outcomes.
local bad = foreign({'hash', 'hash', 'hash', 'zset', 'zset', 'zset'})
if bad then return {'FOREIGN', bad} end
local h = redis.call('HMGET', KEYS[1], 's', 'l')
if not h[1] then return {'NONE'} end
local ask = redis.call('HGET', KEYS[2], 'q' .. ARGV[2])
local expires, unlock, quorum, digest = '0', '0', 1, ''
if ask then
  local lock
  expires, lock, digest = string.match(ask, '^%d+ (%d+) ([%d:]+) (%S*) ')
  unlock = string.match(lock, '^%d+')
  quorum = tonumber(string.match(lock, ':(%d+)$') or 1)
end
local ruling = redis.call('HGET', KEYS[2], 'r' .. ARGV[2])
local votes, cast, mine = redis.call('HGET', KEYS[2], 'v' .. ARGV[2]) or '', 0, nil
local from = 1
while from <= #votes do
  local at, a, b, c, d, rest = string.match(votes, '^(%d+) (%d+) (%d+) (%d+) (%d+) ()', from)
  a, b, c, d = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
  local id, verb = string.sub(votes, rest, rest + a - 1), string.sub(votes, rest + a, rest + a + b - 1)
  from = rest + a + b
  local vote = {'SAME', at, verb, string.sub(votes, from, from + c - 1)}
  from = from + c + d
  cast = cast + 1
  if id == ARGV[3] then vote[1] = 'REVOTED' end
  if not mine and (id == ARGV[3] or string.sub(votes, from - d, from - 1) == ARGV[10]) then mine = vote end
end
if mine then
  mine[5] = int(ruling and 0 or quorum - cast)
  if mine[1] == 'REVOTED' then return mine end
end
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
-- What was decided after the deadline was decided by it.
if answer and expires ~= '0' and tonumber(answer[2]) >= tonumber(expires) and ARGV[12] ~= '1' then
  return {'EXPIRED', expires}
end
if answer then return answer end
if is_closed(h[1]) then return {'CLOSED', h[1]} end
if not ask then return missing(KEYS[2]) end
local now = clock()
local is_late = expires ~= '0' and now >= tonumber(expires)
if ARGV[12] == '1' and not is_late then return {'EARLY', expires} end
if ARGV[12] ~= '1' and is_late then return {'EXPIRED', expires} end
if digest ~= ARGV[6] then return {'STALE', digest} end
if ARGV[8] == '1' and now < tonumber(unlock) then return {'LOCKED', unlock, int(now)} end
local alone = ARGV[11] == '1' or ARGV[12] == '1' or quorum <= 1
if mine and not alone then return mine end
local is_ruled = alone or cast + 1 >= quorum
local number = int(redis.call('HINCRBY', KEYS[1], 'm', 1))
local mail = 'decision:' .. ARGV[2]
if not alone then
  redis.call('HSET', KEYS[2], 'v' .. ARGV[2], votes .. int(now) .. ' ' .. #ARGV[3] .. ' ' .. #ARGV[4] .. ' '
    .. #ARGV[5] .. ' ' .. #ARGV[10] .. ' ' .. ARGV[3] .. ARGV[4] .. ARGV[5] .. ARGV[10])
  if not is_ruled then mail = 'vote:' .. number .. ':' .. ARGV[2] end
end
redis.call('HSET', KEYS[3], mail, number .. ' ' .. int(now) .. ' ' .. ARGV[9] .. ' ' .. ARGV[7])
if tonumber(h[2]) <= now then due_by(KEYS[4], ARGV[1], now) end
if not is_ruled then return {'VOTED', int(now), ARGV[4], ARGV[5], int(quorum - cast - 1)} end
redis.call('HSET', KEYS[2], 'r' .. ARGV[2],
  int(now) .. ' ' .. #ARGV[3] .. ' ' .. #ARGV[4] .. ' ' .. ARGV[3] .. ARGV[4] .. ARGV[5])
redis.call('ZREM', KEYS[5], ARGV[1] .. ':' .. ARGV[2])
redis.call('ZADD', KEYS[6], int(now), ARGV[1] .. ':' .. ARGV[2])
redis.call('ZREMRANGEBYRANK', KEYS[6], 0, -1001)
return {'OK', int(now), ARGV[4], ARGV[5]}
