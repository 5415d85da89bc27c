-- Append entries to a run, and make true with them whatever the commit says.
-- KEYS     1 head   2 journal   3 snapshot   4 asks   5 mailbox   6 marks of consumed signals
--          7 due   8 status index   9 open asks of the partition   10 outbox of the partition
--          11 ended runs of the partition   12 orphan reports   13 blobs; the last three only to close
-- ARGV     1 run id   2 token   3 nonce   4 expected seq   5 op mark   6 chain at expected seq
--          7 term in ms   8 status   9 snapshot   10 due in ms, or ''   11 1: release
--          12 seen mail   13 1: progress   14 entries   15 opened   16 withdrawn   17 consumed
--          18 outbox   19 how long a closed run is kept, in ms, or ''
--          20 ms until a closed run is looked at again
--          21.. chain, body for each entry; id, packed request for each opened; ids withdrawn; ids
--          consumed; time in ms ('0': at once), packed notice for each to be told
-- Returns  {OK | DUP, seq, now, mail}; {DUP_NOT_OWNER | FENCED, token, seq}; {SEQ, seq}; {FORK, seq};
--          {CLOSED, status}; {NONE}; {FOREIGN, key}
-- The repeat is recognised first: a lost reply must not look like a lost lease. But a repeat by a
-- writer that lost the run meanwhile is told so, or it would go on to start what it committed.
-- Token and nonce come before seq: a fenced writer's seq is behind too, and 'fenced' is the reason.
-- Released comes last: the last holder's repeat must be known, and a closed run must say 'closed'.
local is_closing = is_closed(ARGV[8])
local asks = is_closing or ARGV[15] ~= '0' or ARGV[16] ~= '0'
local mail = ARGV[17] ~= '0'
-- Keys that this commit does not touch need no look: it saves the plain one half of the looks.
local bad = foreign({'hash', 'stream', 'string', asks and 'hash', mail and 'hash', mail and 'list',
  'zset', 'zset', asks and 'zset', ARGV[18] ~= '0' and 'zset', 'zset', 'list', 'hash'})
if bad then return {'FOREIGN', bad} end
local h = redis.call('HMGET', KEYS[1], 't', 'k', 'n', 'h', 's', 'l', 'm', 'c', 'r')
if not h[1] then return {'NONE'} end
local expected = tonumber(ARGV[4])
local is_mine = h[1] == ARGV[2] and h[2] == ARGV[3]
local next_id = int(expected + 1) .. '-0'
local count = tonumber(ARGV[14])
-- Only a journal that has grown beyond the expected seq can hold the op already.
if tonumber(h[3]) > expected then
  local entry = redis.call('XRANGE', KEYS[2], next_id, next_id)[1]
  local is_repeat = entry and entry[2][2] == ARGV[5]
  -- A folded run keeps the mark of its last commit in the head.
  if not entry then is_repeat = redis.call('HGET', KEYS[1], 'z') == ARGV[4] .. ' ' .. ARGV[5] end
  if is_repeat then
    if not is_mine then return {'DUP_NOT_OWNER', h[1], h[3]} end
    return {'DUP', int(expected + count), int(clock()), h[7]}
  end
end
if not is_mine then return {'FENCED', h[1], h[3]} end
if h[3] ~= ARGV[4] then return {'SEQ', h[3]} end
if h[4] ~= ARGV[6] then return {'FORK', h[3]} end
if is_closed(h[5]) then return {'CLOSED', h[5]} end
if h[6] == '0' then return {'FENCED', h[1], h[3]} end

-- A head that is older than its journal, which no script leaves behind, fails at the first XADD:
-- the server refuses an id that is not above the last one, and nothing has been written yet.
local now = clock()
local run_id, status = ARGV[1], ARGV[8]
local at, seq, chain = 21, expected, ''
for _ = 1, count do
  seq = seq + 1
  chain = ARGV[at]
  redis.call('XADD', KEYS[2], int(seq) .. '-0', 'o', seq == expected + 1 and ARGV[5] or '',
    'h', chain, 'b', ARGV[at + 1])
  at = at + 2
end
for _ = 1, tonumber(ARGV[15]) do
  -- A decided request stays decided: asking again under its id changes nothing.
  if redis.call('HEXISTS', KEYS[4], 'r' .. ARGV[at]) == 0 then
    redis.call('HSET', KEYS[4], 'q' .. ARGV[at], int(now) .. ' ' .. ARGV[at + 1])
    redis.call('HDEL', KEYS[4], 'v' .. ARGV[at])
    redis.call('ZADD', KEYS[9], int(now), run_id .. ':' .. ARGV[at])
  end
  at = at + 2
end
for _ = 1, tonumber(ARGV[16]) do
  if redis.call('HEXISTS', KEYS[4], 'r' .. ARGV[at]) == 0 then
    redis.call('HDEL', KEYS[4], 'q' .. ARGV[at], 'v' .. ARGV[at], 'w' .. ARGV[at], 'c' .. ARGV[at])
    redis.call('ZREM', KEYS[9], run_id .. ':' .. ARGV[at])
  end
  at = at + 1
end
for _ = 1, tonumber(ARGV[17]) do
  -- The sender's mark is kept for a while: its repeat may still be on the way.
  local item = redis.call('HGET', KEYS[5], ARGV[at])
  local mark = item and string.match(item, '^%d+ %d+ (%w+) ')
  if mark then
    redis.call('LPUSH', KEYS[6], mark)
    redis.call('LTRIM', KEYS[6], 0, 31)
  end
  redis.call('HDEL', KEYS[5], ARGV[at])
  at = at + 1
end
for _ = 1, tonumber(ARGV[18]) do
  redis.call('ZADD', KEYS[10], ARGV[at] == '0' and int(now) or ARGV[at], ARGV[at + 1])
  at = at + 2
end

local lease = '0'
if is_closing then
  redis.call('ZREM', KEYS[7], run_id)
  for _, field in ipairs(redis.call('HKEYS', KEYS[4])) do
    local ask = string.sub(field, 2)
    if string.sub(field, 1, 1) == 'q' and redis.call('HEXISTS', KEYS[4], 'r' .. ask) == 0 then
      redis.call('HDEL', KEYS[4], field, 'v' .. ask, 'w' .. ask, 'c' .. ask)
      redis.call('ZREM', KEYS[9], run_id .. ':' .. ask)
    end
  end
elseif ARGV[11] == '1' then
  local due = ARGV[10]
  -- Who wrote to a held run woke nobody: mail that the writer has not seen makes the run due now.
  if tonumber(h[7]) > tonumber(ARGV[12]) and (due == '' or tonumber(due) > now) then due = int(now) end
  if due == '' then redis.call('ZREM', KEYS[7], run_id) else redis.call('ZADD', KEYS[7], due, run_id) end
  if due ~= '' and tonumber(due) <= now then wake(KEYS[7], run_id) end
else
  lease = int(now + tonumber(ARGV[7]))
  redis.call('ZADD', KEYS[7], lease, run_id)
end
local recoveries = ARGV[13] == '1' and '0' or h[9]
redis.call('HSET', KEYS[1], 'n', int(seq), 'h', chain, 's', status, 'l', lease, 'u', int(now),
  'r', recoveries)
redis.call('SET', KEYS[3], ARGV[9])
if status ~= h[5] then file(KEYS[8], run_id, status, h[8]) end
if is_closing then
  redis.call('ZADD', KEYS[11], int(now + tonumber(ARGV[20])), run_id)
  if ARGV[19] ~= '' then
    -- Last, since a SET takes the expiry away. Keys that come later go when the run is tidied up.
    local ends = int(now + tonumber(ARGV[19]))
    for _, i in ipairs({1, 2, 3, 4, 5, 6, 12, 13}) do redis.call('PEXPIREAT', KEYS[i], ends) end
  end
end
return {'OK', int(seq), int(now), h[7]}
