-- Add to an open request what decides nothing: a comment, or who looks at it.
-- KEYS     1 head   2 asks
-- ARGV     1 run id   2 ask id   3 comment | claim | release   4 by   5 voter   6 text
--          7 mark of this call   8 most comments
-- Returns  {OK, at}; {HELD, at, by}: claimed by another; {FULL}; {DECIDED, at, verb, by}; {NONE};
--          {CLOSED, status}; {MISSING, open ids …}; {FOREIGN, key}
-- A comment whose reply was lost is known by its mark. Claims keep nobody from deciding.
local bad = foreign({'hash', 'hash'})
if bad then return {'FOREIGN', bad} end
local status = redis.call('HGET', KEYS[1], 's')
if not status then return {'NONE'} end
local ruling = redis.call('HGET', KEYS[2], 'r' .. ARGV[2])
if ruling then
  local at, a, b, rest = string.match(ruling, '^(%d+) (%d+) (%d+) ()')
  local verb, by = rest + tonumber(a), rest + tonumber(a) + tonumber(b)
  return {'DECIDED', at, string.sub(ruling, verb, by - 1), string.sub(ruling, by)}
end
if is_closed(status) then return {'CLOSED', status} end
if redis.call('HEXISTS', KEYS[2], 'q' .. ARGV[2]) == 0 then return missing(KEYS[2]) end
local now = int(clock())
if ARGV[3] ~= 'comment' then
  local held = redis.call('HGET', KEYS[2], 'w' .. ARGV[2])
  if held then
    local at, size, rest = string.match(held, '^(%d+) (%d+) ()')
    local voter = rest + tonumber(size)
    if string.sub(held, voter) ~= ARGV[5] then return {'HELD', at, string.sub(held, rest, voter - 1)} end
  end
  if ARGV[3] == 'release' then
    redis.call('HDEL', KEYS[2], 'w' .. ARGV[2])
  else
    redis.call('HSET', KEYS[2], 'w' .. ARGV[2], now .. ' ' .. #ARGV[4] .. ' ' .. ARGV[4] .. ARGV[5])
  end
  return {'OK', now}
end
local said = redis.call('HGET', KEYS[2], 'c' .. ARGV[2]) or ''
local from, count = 1, 0
while from <= #said do
  local at, mark, a, b, rest = string.match(said, '^(%d+) (%w+) (%d+) (%d+) ()', from)
  if mark == ARGV[7] then return {'OK', at} end
  from, count = rest + tonumber(a) + tonumber(b), count + 1
end
if count >= tonumber(ARGV[8]) then return {'FULL'} end
redis.call('HSET', KEYS[2], 'c' .. ARGV[2],
  said .. now .. ' ' .. ARGV[7] .. ' ' .. #ARGV[4] .. ' ' .. #ARGV[6] .. ' ' .. ARGV[4] .. ARGV[6])
return {'OK', now}
