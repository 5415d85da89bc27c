-- Shared by every script, in front of its own text. Lua 5.1 and 5.4, no library but string and math.
-- A run's head is a hash of short fields, so that it stays one small listpack:
--   n seq   h chain   s status   t token   k nonce   w owner   l lease end (0: not held)   r recoveries
--   m mail ever sent   c created   u updated   v mail when claimed   o claimed from a dead owner
--   p status before the claim
local HEAD = {'n', 'h', 's', 't', 'k', 'w', 'l', 'r', 'm', 'c', 'u', 'v', 'o', 'p'}
local RANK = {ready = 1, running = 2, waiting = 3, sleeping = 4, done = 5, error = 6}

-- The server's clock in ms: leases and deadlines are never judged by a worker's clock.
local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- Digits of a whole number: 5.1 and 5.4 would print 1e13 in different ways.
local function int(x) return string.format('%.0f', x) end

-- The first of KEYS that holds another type than it should, or nil. A script that failed at its
-- third write would keep the first two, so foreign data is found before anything is written.
-- A kind of false or nil: the script does not touch that key this time.
local function foreign(kinds)
  for i = 1, #KEYS do
    if kinds[i] then
      local t = redis.call('TYPE', KEYS[i])
      if type(t) == 'table' then t = t.ok end
      if t ~= 'none' and t ~= kinds[i] then return KEYS[i] end
    end
  end
  return nil
end

local function is_closed(status) return status == 'done' or status == 'error' end

-- One index for all statuses: status in the high digits of the score, creation in the low ones.
-- Filing again moves the run, so it never stands under two statuses.
local function file(key, run_id, status, created)
  redis.call('ZADD', key, int(RANK[status] * 1e13 + tonumber(created)), run_id)
end

-- Tell idle workers that a run is due now, on a channel with the name of its due index. Only a hint:
-- pcall, since a server that forbids the channel must not end a script in the middle of its writes.
local function wake(key, run_id) redis.pcall('PUBLISH', key, run_id) end

-- Make the run due at `at`, which has come, unless it is due earlier.
local function due_by(key, run_id, at)
  local has = redis.call('ZSCORE', key, run_id)
  if not has or tonumber(has) > at then redis.call('ZADD', key, int(at), run_id) end
  wake(key, run_id)
end

-- {MISSING, open ids …}: what a request that is not there could have meant.
local function missing(asks)
  local open = {'MISSING'}
  for _, field in ipairs(redis.call('HKEYS', asks)) do
    local id = string.sub(field, 2)
    if #open <= 20 and string.sub(field, 1, 1) == 'q' and redis.call('HEXISTS', asks, 'r' .. id) == 0 then
      open[#open + 1] = id
    end
  end
  return open
end

-- A head as an answer: the fields of HEAD, the snapshot, the due time ('' where there is none).
local function told(head, snapshot, due)
  local h = redis.call('HMGET', head, 'n', 'h', 's', 't', 'k', 'w', 'l', 'r', 'm', 'c', 'u')
  h[#h + 1] = redis.call('GET', snapshot) or ''
  h[#h + 1] = redis.call('ZSCORE', due, ARGV[1]) or ''
  return h
end
