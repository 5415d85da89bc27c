-- Remove every trace of a run.
-- KEYS     1 head   2 journal   3 snapshot   4 asks   5 mailbox   6 marks   7 orphan reports   8 blobs
--          9 live   10 folded   11 due   12 runs   13 status index   14 open asks   15 ruled asks
--          16 ended
-- ARGV     1 run id   2 1: also if it is not finished   3 only if it ended before, in ms, or ''
-- Returns  {OK, keys removed}; {OPEN, status}; {YOUNG, when it ended}; {FOREIGN, key}
-- A run whose head has expired is one that was finished: what it left behind goes.
local bad = foreign({'hash', false, 'string', 'hash', 'hash', 'list', 'list', 'hash', 'stream', 'string',
  'zset', 'zset', 'zset', 'zset', 'zset', 'zset'})
if bad then return {'FOREIGN', bad} end
local h = redis.call('HMGET', KEYS[1], 's', 'u')
if h[1] then
  if ARGV[2] ~= '1' and not is_closed(h[1]) then return {'OPEN', h[1]} end
  if ARGV[3] ~= '' and tonumber(h[2]) >= tonumber(ARGV[3]) then return {'YOUNG', h[2]} end
end

local stem = ARGV[1] .. ':'
for _, field in ipairs(redis.call('HKEYS', KEYS[4])) do
  if string.sub(field, 1, 1) == 'q' then
    redis.call('ZREM', KEYS[14], stem .. string.sub(field, 2))
    redis.call('ZREM', KEYS[15], stem .. string.sub(field, 2))
  end
end
-- Requests of a run that expired are gone with their names: the index of at most 1,000 is searched.
if not h[1] then
  for _, member in ipairs(redis.call('ZRANGE', KEYS[15], 0, -1)) do
    if string.sub(member, 1, #stem) == stem then redis.call('ZREM', KEYS[15], member) end
  end
end
local removed = 0
for i = 1, 10 do removed = removed + redis.call('DEL', KEYS[i]) end
for _, i in ipairs({11, 12, 13, 16}) do redis.call('ZREM', KEYS[i], ARGV[1]) end
return {'OK', int(removed)}
